// A pool of threads for kernels of 5 to 500 microseconds: no thread is made, and normally none put to sleep, per
// call. Knows no kernel.
#pragma once

#if defined(__GNUC__)
#define E3_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define E3_EXPORT extern "C"
#endif

namespace e3 {

// Runs work(context, part) once for each part of 0 .. parts - 1 and returns when all are done. The caller takes
// parts like any other thread, so a worker that is late costs time and never blocks. `parts` <= 1, a call from
// inside a part, and a call while another thread's runs all stay on the calling thread. work must not throw.
void pool_run(int parts, void (*work)(void* context, int part), void* context);

// Threads that take parts, the caller included; 1 before the first set.
int pool_threads();

}  // namespace e3

// Makes the pool n threads in all (the caller is one of them); n < 1 counts as 1.
E3_EXPORT void e3_set_threads(int n);
E3_EXPORT int e3_threads();
