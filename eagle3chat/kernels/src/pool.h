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
// parts like any other thread, so a worker that is late for the call costs time and never blocks; one that loses its
// core within a part is waited for. `parts` <= 1, a call from inside a part, and a call while another thread's runs
// all stay on the calling thread. work must not throw.
void pool_run(int parts, void (*work)(void* context, int part), void* context);

// Work that waits for no worker that lost its core: the caller does the part too, and the worker's is dropped. None
// of the functions may throw.
struct Race {
  void (*read)(const void* context);  // on each thread that takes parts, once, first: all that the others need
  void (*work)(int part);             // on the caller
  void (*make)(int part);             // on a worker, into memory of its own; perhaps after the call
  void (*keep)(int part);             // on it, right after `make` and during the call: to where `work` writes
};
constexpr int kMaxRaceParts = 256;

// Works at, or makes and keeps, each part of 0 .. parts - 1, at most kMaxRaceParts, and returns true; or does nothing
// and returns false where pool_run would stay on the calling thread.
bool pool_race(int parts, const Race& race, const void* context);

// Returns when no worker is in a part of a call that is over: then what `make` reads may be freed.
void pool_settle();

// Threads that take parts, the caller included; 1 before the first set.
int pool_threads();

}  // namespace e3

// Makes the pool n threads in all (the caller is one of them); n < 1 counts as 1.
E3_EXPORT void e3_set_threads(int n);
E3_EXPORT int e3_threads();
