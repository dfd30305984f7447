// One word says what there is to take: generation (32 bits), parts (16), next part (16). Who swaps `next` up by one
// owns that part; the swap fails when the generation moved on, so a late worker cannot run a part of a finished
// call with the arguments of the next one.
//
// In a race a worker's part may outlast the call. Each part has a mark, the generation in which it was last done or begun
// by the caller: it only grows, and who raises it may write results. A worker's state says what a call's end, or
// pool_settle, has to wait for.
#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/resource.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace e3 {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(300);  // longer than the Python between two kernels of a pass
constexpr auto kPatience = std::chrono::microseconds(15);  // with parts that have been begun
constexpr int kMaxParts = 0xffff;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

enum State : int {
  kOutside,
  kReading,  // may read a call's arguments; from before a part is taken
  kMaking,   // reads them no more
};

struct alignas(64) Worker {
  std::atomic<State> state{kOutside};
  std::uint32_t generation = 0;  // of the race that it read
  std::thread thread;
};

// A line of its own, which stays with the thread that does this part in call after call.
struct alignas(64) Mark {
  std::atomic<std::uint32_t> generation{0};
};

struct alignas(64) Pool {
  alignas(64) std::atomic<std::uint64_t> offer{0};
  std::atomic<const Race*> race{nullptr};  // null: work
  std::atomic<void (*)(void*, int)> work{nullptr};
  std::atomic<void*> context{nullptr};
  alignas(64) std::atomic<int> done{0};
  alignas(64) std::atomic<bool> busy{false};
  std::atomic<bool> stopping{false};
  std::atomic<int> asleep{0};
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::unique_ptr<Worker>> workers;
  Mark marks[kMaxRaceParts];
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

// Whether the part is the calling thread's to do, or to keep.
bool win(Mark& mark, std::uint32_t generation) {
  std::uint32_t seen = mark.generation.load(std::memory_order_relaxed);
  while (static_cast<std::int32_t>(generation - seen) > 0) {
    if (mark.generation.compare_exchange_weak(seen, generation, std::memory_order_relaxed)) return true;
  }
  return false;
}

void work_at(Pool& p, const Race& race, int part, std::uint32_t generation) {
  if (!win(p.marks[part], generation)) return;
  race.work(part);
  p.done.fetch_add(1, std::memory_order_release);
}

// A part that this worker has taken.
void make_part(Pool& p, Worker& self, const Race& race, const void* context, int part, std::uint32_t generation) {
  if (self.generation != generation) race.read(context);
  self.generation = generation;
  self.state.store(kMaking, std::memory_order_release);
  race.make(part);
  if (!win(p.marks[part], generation)) return;
  race.keep(part);
  p.done.fetch_add(1, std::memory_order_release);
}

// Takes parts until none is left. `self`: the worker, null: the caller, which has read.
void take(Pool& p, Worker* self) {
  std::uint64_t seen = p.offer.load(std::memory_order_acquire);
  while (open(seen)) {
    const Race* race = p.race.load(std::memory_order_relaxed);
    auto work = p.work.load(std::memory_order_relaxed);
    void* context = p.context.load(std::memory_order_relaxed);
    // Before the swap, which publishes it: who sees the part taken sees its taker.
    if (self != nullptr) self->state.store(kReading, std::memory_order_relaxed);
    // Acquire on failure too: a newer offer's arguments are read next.
    if (!p.offer.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    const auto part = static_cast<int>(seen & 0xffff);
    const auto generation = static_cast<std::uint32_t>(seen >> 32);
    if (race == nullptr) {
      work(context, part);
      p.done.fetch_add(1, std::memory_order_release);
    } else if (self == nullptr) {
      work_at(p, *race, part, generation);
    } else {
      make_part(p, *self, *race, context, part, generation);
    }
    seen = p.offer.load(std::memory_order_acquire);
  }
  if (self != nullptr) self->state.store(kOutside, std::memory_order_release);
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

// What else wants a core then gets a worker's rather than the caller's, without which nothing goes on.
void give_way() {
#if defined(__linux__)  // where a thread has a priority of its own, and 0 is the calling one
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 2);
#endif
}

void serve(Pool* p, Worker* self) {
  give_way();
  while (!p->stopping.load(std::memory_order_acquire)) {
    take(*p, self);
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

// Whether all parts are done within the time.
bool done_within(const Pool& p, int parts, Clock::duration time) {
  if (p.done.load(std::memory_order_acquire) == parts) return true;
  for (const auto until = Clock::now() + time; Clock::now() < until;) {
    for (int i = 0; i < 16; ++i) {
      relax();
      if (p.done.load(std::memory_order_acquire) == parts) return true;
    }
  }
  return false;
}

void wait_for(const Pool& p, int parts) {
  while (!done_within(p, parts, kPatience)) std::this_thread::yield();  // the worker with the last part lost its core
}

// Returns when no worker is in this state.
void wait_while(const Pool& p, bool (*waits)(State)) {
  for (const auto& worker : p.workers) {
    while (waits(worker->state.load(std::memory_order_acquire))) std::this_thread::yield();
  }
}

std::uint32_t offer(Pool& p, int parts, const Race* race, void (*work)(void*, int), void* context) {
  p.race.store(race, std::memory_order_relaxed);
  p.work.store(work, std::memory_order_relaxed);
  p.context.store(context, std::memory_order_relaxed);
  p.done.store(0, std::memory_order_relaxed);
  const auto generation = static_cast<std::uint32_t>(p.offer.load(std::memory_order_relaxed) >> 32) + 1;
  const std::uint64_t made = static_cast<std::uint64_t>(generation) << 32 | static_cast<std::uint64_t>(parts) << 16;
  p.offer.store(made, std::memory_order_seq_cst);
  rouse(p);
  return generation;
}

bool stays(const Pool& p, int parts) {
  return parts <= 1 || parts > kMaxParts || p.count.load(std::memory_order_relaxed) == 1;
}

void resize(Pool& p, int n) {
  while (!claim(p)) std::this_thread::yield();
  if (n != p.count.load()) {
    p.stopping.store(true, std::memory_order_seq_cst);
    rouse(p);
    for (const auto& worker : p.workers) worker->thread.join();
    p.workers.clear();
    p.stopping.store(false, std::memory_order_seq_cst);
    try {
      for (int i = 1; i < n; ++i) {
        auto worker = std::make_unique<Worker>();
        worker->thread = std::thread(serve, &p, worker.get());
        p.workers.push_back(std::move(worker));
      }
    } catch (const std::system_error&) {  // no more threads to be had: the ones that started serve
    }
    p.count.store(1 + static_cast<int>(p.workers.size()));
  }
  release(p);
}

}  // namespace

int pool_threads() { return pool().count.load(std::memory_order_relaxed); }

void pool_run(int parts, void (*work)(void*, int), void* context) {
  Pool& p = pool();
  if (stays(p, parts) || !claim(p)) {
    for (int part = 0; part < parts; ++part) work(context, part);
    return;
  }
  offer(p, parts, nullptr, work, context);
  take(p, nullptr);
  wait_for(p, parts);
  release(p);
}

bool pool_race(int parts, const Race& race, const void* context) {
  Pool& p = pool();
  if (stays(p, parts) || !claim(p)) return false;
  const std::uint32_t generation = offer(p, parts, &race, nullptr, const_cast<void*>(context));
  race.read(context);
  take(p, nullptr);
  if (!done_within(p, parts, kPatience)) {
    for (int part = 0; part < parts; ++part) work_at(p, race, part, generation);
    wait_for(p, parts);
    wait_while(p, [](State state) { return state == kReading; });
  }
  release(p);
  return true;
}

void pool_settle() {
  Pool& p = pool();
  while (!claim(p)) std::this_thread::yield();
  wait_while(p, [](State state) { return state != kOutside; });
  release(p);
}

}  // namespace e3

void e3_set_threads(int n) { e3::resize(e3::pool(), n < 1 ? 1 : n); }
int e3_threads() { return e3::pool_threads(); }
