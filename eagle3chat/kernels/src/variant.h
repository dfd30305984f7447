// Which instructions the kernels use: the best that this CPU has, or a lesser one that a test asks for.
#pragma once

#include "pool.h"

// Whether this compiler can make code with AArch64's dot product: GCC for functions that are marked, Clang where all
// code may have it, as for Apple's computers.
#if defined(__aarch64__) && (defined(__ARM_FEATURE_DOTPROD) || !defined(__clang__))
#define E3_DOT_PRODUCT 1
#else
#define E3_DOT_PRODUCT 0
#endif

namespace e3 {

// The numbers are part of the C interface.
enum Variant : int {
  kPortable = 0,
  kAvx2 = 1,        // AVX2, FMA, F16C
  kAvx512 = 2,      // AVX512 F, BW, DQ, VL and VNNI
  kNeon = 3,        // AArch64 with the dot product of 8-bit integers
  kAvx512Bf16 = 4,  // kAvx512 and products of bfloat16
};

Variant variant();

}  // namespace e3

// Whether this CPU and build have a variant.
E3_EXPORT int e3_has_variant(int variant);
// The one in use.
E3_EXPORT int e3_variant();
// Uses a variant from now on, in all threads; returns 0 (and changes nothing) when there is none such here. -1: the best.
E3_EXPORT int e3_use_variant(int variant);
