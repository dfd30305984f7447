// Threads that stay within a part for as long as a case wants, which no Python can hold there. Prints what went wrong;
// exit code 1. test_pool_race.py builds and runs it.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#endif

#include "../../eagle3chat/kernels/src/pool.h"

namespace {

constexpr int kParts = 40;
std::atomic<int> wrong{0};
std::atomic<bool> hold_making{false};   // a worker's next part lasts until this is false
std::atomic<bool> hold_reading{false};  // and what it does before
std::atomic<int> inside{0};             // workers that are held
int races = 0;
std::thread::id caller;
int callers_priority = 0;

void expect(bool right, const char* what) {
  if (!right && ++wrong < 20) std::printf("wrong: %s\n", what);
}

struct Call {
  int number;
  std::atomic<int>* done;  // times that each part was
};

// What a thread read, and made.
thread_local Call own{};
thread_local int made_part = -1;

void wait_here(std::atomic<bool>& held) {
  if (std::this_thread::get_id() == caller || !held.load()) return;
  ++inside;
  while (held.load()) std::this_thread::yield();
  --inside;
}

void read(const void* context) {
  const Call& call = *static_cast<const Call*>(context);
  wait_here(hold_reading);
  expect(call.number > own.number, "a call was read twice, or after its end");
  own = call;
}

void work(int part) {
  expect(std::this_thread::get_id() == caller, "a worker wrote results at once");
  ++own.done[part];
}

// A worker gives way to other work before its caller does.
void expect_nicer() {
#if defined(__linux__)
  expect(getpriority(PRIO_PROCESS, 0) > callers_priority || callers_priority == 19, "a worker is as greedy as its caller");
#endif
}

void make(int part) {
  expect_nicer();
  expect(std::this_thread::get_id() != caller, "the caller made a part aside");
  const int number = own.number;
  wait_here(hold_making);
  expect(own.number == number, "a worker read another call within a part");
  made_part = part;
}

void keep(int part) {
  expect(made_part == part, "kept what another part made");
  ++own.done[part];
}

constexpr e3::Race kRace{read, work, make, keep};

// Of all races so far: a late part may be kept after its race.
using Kept = std::vector<std::atomic<int>>;
std::deque<Kept> kept_of;
std::vector<int> parts_of;

void expect_kept(const Kept& kept, int parts) {
  for (int part = 0; part < kParts; ++part) expect(kept[part] == (part < parts), "a part was kept twice or not at all");
}

void race(int parts) {
  kept_of.emplace_back(kParts);
  parts_of.push_back(parts);
  Call call{++races, kept_of.back().data()};
  expect(e3::pool_race(parts, kRace, &call), "no race was run");
  call.number = -1;  // as memory that is used for something else
  expect_kept(kept_of.back(), parts);
}

void count(void* context, int part) { ++static_cast<std::atomic<int>*>(context)[part]; }

void plain(int parts) {
  std::vector<std::atomic<int>> run(kParts);
  e3::pool_run(parts, count, run.data());
  for (int part = 0; part < kParts; ++part) expect(run[part] == (part < parts), "a part was run twice or not at all");
}

void both_kinds(int count) {
  for (int i = 0; i < count; ++i) {
    race(2 + i % (kParts - 1));
    if (i % 3 == 0) plain(1 + i % kParts);
  }
}

// Calls until all workers sit in a part, then calls of both kinds without them.
void without_workers(int threads) {
  hold_making = true;
  while (inside.load() < threads - 1) race(kParts);
  both_kinds(100);
  expect(inside.load() == threads - 1, "a worker left its part");
  std::atomic<bool> settled{false};
  std::thread settling([&] {
    e3::pool_settle();
    settled = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  expect(!settled.load(), "settled while a part was late");
  hold_making = false;
  settling.join();
  expect(inside.load() == 0, "settled before a late part ended");
  both_kinds(2000);
}

// A worker that has not yet read a call is waited for, as it reads what ends with the call.
void late_readers() {
  hold_reading = true;
  std::thread letting_go([] {
    while (inside.load() == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    hold_reading = false;
  });
  while (hold_reading.load()) race(kParts);
  letting_go.join();
  both_kinds(500);
}

}  // namespace

int main() {
  caller = std::this_thread::get_id();
#if defined(__linux__)
  callers_priority = getpriority(PRIO_PROCESS, 0);
#endif
  std::vector<std::atomic<int>> none(kParts);
  const Call call{1, none.data()};
  expect(!e3::pool_race(kParts, kRace, &call), "a race of one thread");
  for (int threads : {2, 4, 3, 7}) {
    e3_set_threads(threads);
    expect(e3_threads() == threads, "another number of threads");
    expect(!e3::pool_race(1, kRace, &call), "a race of one part");
    without_workers(threads);
    late_readers();
  }
  for (std::size_t i = 0; i < kept_of.size(); ++i) expect_kept(kept_of[i], parts_of[i]);
  return wrong == 0 ? 0 : 1;
}
