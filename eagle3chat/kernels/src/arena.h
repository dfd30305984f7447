// Memory for weights, on large pages where the system has them: a pass reads all weights once, and with small pages
// much of the time goes into finding where each page lies.
#pragma once

#include <cstddef>

namespace e3 {

// Zeroed, aligned to 64 bytes; null when memory is short. Safe to call on several threads.
void* arena_take(std::size_t bytes);

// What arena_take gave, or null.
void arena_give(void* memory);

}  // namespace e3
