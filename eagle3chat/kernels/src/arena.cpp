// See arena.h. Weights lie one after the other in large pieces; a piece goes back to the system when the last of its
// weights is given back, which is how a model is freed.
#include "arena.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace e3 {
namespace {

constexpr std::size_t kPage = std::size_t(2) << 20;
constexpr std::size_t kPiece = std::size_t(32) << 20;
constexpr std::size_t kAlign = 64;

struct Piece {
  char* start;
  std::size_t size, used;
  int taken;  // weights in it
};

struct Arena {
  std::mutex mutex;
  std::vector<Piece> pieces;
};

Arena& arena() {
  static Arena* kept = new Arena;  // never freed: weights may outlive static objects
  return *kept;
}

std::size_t up(std::size_t size, std::size_t step) { return (size + step - 1) / step * step; }

bool add_piece(std::vector<Piece>& pieces, std::size_t bytes) {
  const std::size_t size = up(bytes < kPiece ? kPiece : bytes, kPage);
  void* memory = nullptr;
  if (posix_memalign(&memory, kPage, size) != 0) return false;
#if defined(MADV_HUGEPAGE)
  madvise(memory, size, MADV_HUGEPAGE);  // a wish: without large pages all works as well
#endif
  pieces.push_back({static_cast<char*>(memory), size, 0, 0});
  return true;
}

}  // namespace

void* arena_take(std::size_t bytes) {
  Arena& a = arena();
  const std::size_t size = up(bytes, kAlign);
  const std::lock_guard<std::mutex> lock(a.mutex);
  if (a.pieces.empty() || a.pieces.back().size - a.pieces.back().used < size) {
    if (!add_piece(a.pieces, size)) return nullptr;
  }
  Piece& piece = a.pieces.back();
  char* memory = piece.start + piece.used;
  piece.used += size;
  ++piece.taken;
  std::memset(memory, 0, size);
  return memory;
}

void arena_give(void* memory) {
  if (memory == nullptr) return;
  Arena& a = arena();
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const std::lock_guard<std::mutex> lock(a.mutex);
  for (std::size_t i = 0; i < a.pieces.size(); ++i) {
    const auto start = reinterpret_cast<std::uintptr_t>(a.pieces[i].start);
    if (at < start || at >= start + a.pieces[i].size) continue;
    if (--a.pieces[i].taken == 0) {
      std::free(a.pieces[i].start);
      a.pieces.erase(a.pieces.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return;
  }
}

}  // namespace e3
