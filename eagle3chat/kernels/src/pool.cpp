// One word says what there is to take: generation (32 bits), parts (16), next part (16). Who swaps `next` up by one
// owns that part; the swap fails when the generation moved on, so a late worker cannot run a part of a finished
// call with the arguments of the next one.
#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace e3 {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(300);  // longer than the Python between two kernels of a pass
constexpr int kMaxParts = 0xffff;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

struct alignas(64) Pool {
  alignas(64) std::atomic<std::uint64_t> offer{0};
  std::atomic<void (*)(void*, int)> work{nullptr};
  std::atomic<void*> context{nullptr};
  alignas(64) std::atomic<int> done{0};
  alignas(64) std::atomic<bool> busy{false};
  std::atomic<bool> stopping{false};
  std::atomic<int> asleep{0};
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> threads;
  std::atomic<int> count{1};
};

Pool* make_pool();

// Never destroyed: workers may still spin on it while the process exits. Replaced in a forked child, which has none.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  Pool* found = the_pool.load(std::memory_order_acquire);
  return found != nullptr ? *found : *make_pool();
}

Pool* make_pool() {
  static std::mutex making;
  std::lock_guard<std::mutex> lock(making);
  Pool* found = the_pool.load(std::memory_order_acquire);
  if (found != nullptr) return found;
#if !defined(_WIN32)
  static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
  (void)registered;
#endif
  found = new Pool;
  the_pool.store(found, std::memory_order_release);
  return found;
}

bool open(std::uint64_t offer) { return (offer & 0xffff) < ((offer >> 16) & 0xffff); }

// Takes parts until none is left.
void take(Pool& p) {
  std::uint64_t seen = p.offer.load(std::memory_order_acquire);
  while (open(seen)) {
    auto work = p.work.load(std::memory_order_relaxed);
    void* context = p.context.load(std::memory_order_relaxed);
    // Acquire on failure too: a newer offer's arguments are read next.
    if (p.offer.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      work(context, static_cast<int>(seen & 0xffff));
      p.done.fetch_add(1, std::memory_order_acq_rel);
      seen = p.offer.load(std::memory_order_acquire);
    }
  }
}

bool ready(const Pool& p) {
  return open(p.offer.load(std::memory_order_seq_cst)) || p.stopping.load(std::memory_order_seq_cst);
}

void sleep(Pool& p) {
  std::unique_lock<std::mutex> lock(p.mutex);
  p.asleep.fetch_add(1, std::memory_order_seq_cst);  // before `ready`: who offers afterwards sees a sleeper
  p.wake.wait(lock, [&p] { return ready(p); });
  p.asleep.fetch_sub(1, std::memory_order_seq_cst);
}

void serve(Pool* p) {
  while (!p->stopping.load(std::memory_order_acquire)) {
    take(*p);
    const auto until = Clock::now() + kSpin;
    bool found = false;
    while (!found && Clock::now() < until) {
      for (int i = 0; i < 16 && !found; ++i) {
        relax();
        found = ready(*p);
      }
    }
    if (!found) sleep(*p);
  }
}

void rouse(Pool& p) {
  if (p.asleep.load(std::memory_order_seq_cst) == 0) return;
  { std::lock_guard<std::mutex> lock(p.mutex); }  // a worker between its check and its wait is in here
  p.wake.notify_all();
}

bool claim(Pool& p) { return !p.busy.exchange(true, std::memory_order_acquire); }
void release(Pool& p) { p.busy.store(false, std::memory_order_release); }

void wait_for(Pool& p, int parts) {
  for (int spins = 0; p.done.load(std::memory_order_acquire) != parts; ++spins) {
    relax();
    if (spins > 2000) std::this_thread::yield();  // the worker with the last part lost its core
  }
}

void resize(Pool& p, int n) {
  while (!claim(p)) std::this_thread::yield();
  if (n != p.count.load()) {
    p.stopping.store(true, std::memory_order_seq_cst);
    rouse(p);
    for (std::thread& thread : p.threads) thread.join();
    p.threads.clear();
    p.stopping.store(false, std::memory_order_seq_cst);
    try {
      for (int i = 1; i < n; ++i) p.threads.emplace_back(serve, &p);
    } catch (const std::system_error&) {  // no more threads to be had: the ones that started serve
    }
    p.count.store(1 + static_cast<int>(p.threads.size()));
  }
  release(p);
}

}  // namespace

int pool_threads() { return pool().count.load(std::memory_order_relaxed); }

void pool_run(int parts, void (*work)(void*, int), void* context) {
  Pool& p = pool();
  const bool alone = parts <= 1 || parts > kMaxParts || p.count.load(std::memory_order_relaxed) == 1;
  if (alone || !claim(p)) {
    for (int part = 0; part < parts; ++part) work(context, part);
    return;
  }
  p.work.store(work, std::memory_order_relaxed);
  p.context.store(context, std::memory_order_relaxed);
  p.done.store(0, std::memory_order_relaxed);
  const std::uint64_t generation = (p.offer.load(std::memory_order_relaxed) >> 32) + 1;
  p.offer.store(generation << 32 | static_cast<std::uint64_t>(parts) << 16, std::memory_order_seq_cst);
  rouse(p);
  take(p);
  wait_for(p, parts);
  release(p);
}

}  // namespace e3

void e3_set_threads(int n) { e3::resize(e3::pool(), n < 1 ? 1 : n); }
int e3_threads() { return e3::pool_threads(); }
