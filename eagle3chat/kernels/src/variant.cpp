#include "variant.h"

#include <atomic>
#include <initializer_list>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace e3 {
namespace {

#if E3_DOT_PRODUCT
bool has_dot_product() {
#if defined(__ARM_FEATURE_DOTPROD)
  return true;
#elif defined(__linux__)
  constexpr unsigned long kBit = 1UL << 20;  // HWCAP_ASIMDDP of Linux's asm/hwcap.h, which old headers lack
  return (getauxval(AT_HWCAP) & kBit) != 0;
#else
  return false;
#endif
}
#endif

bool has(int wanted) {
  switch (wanted) {
    case kPortable:
      return true;
#if defined(__x86_64__)
    case kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // and so F16C, which Clang cannot ask for
    case kAvx512:
      return has(kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni");
#if !defined(__clang__)
    case kAvx512Bf16:
      return has(kAvx512) && __builtin_cpu_supports("avx512bf16");
#endif
#elif E3_DOT_PRODUCT
    case kNeon:
      return has_dot_product();
#endif
    default:
      return false;
  }
}

// A product of bfloat16 pairs takes an Intel CPU as long as four of float32: VDPBF16PS starts once in two cycles,
// measured on Emerald Rapids, the one that was at hand.
bool worth_using(int wanted) {
#if defined(__x86_64__)
  if (wanted == kAvx512Bf16) return !__builtin_cpu_is("intel");
#endif
  return true;
}

int best() {
  for (int wanted : {kNeon, kAvx512Bf16, kAvx512, kAvx2}) {
    if (has(wanted) && worth_using(wanted)) return wanted;
  }
  return kPortable;
}

std::atomic<int>& chosen() {
  static std::atomic<int> value{best()};
  return value;
}

}  // namespace

Variant variant() { return static_cast<Variant>(chosen().load(std::memory_order_relaxed)); }

}  // namespace e3

int e3_has_variant(int variant) { return e3::has(variant) ? 1 : 0; }
int e3_variant() { return e3::variant(); }
int e3_use_variant(int variant) {
  const int wanted = variant < 0 ? e3::best() : variant;
  if (!e3::has(wanted)) return 0;
  e3::chosen().store(wanted, std::memory_order_relaxed);
  return 1;
}
