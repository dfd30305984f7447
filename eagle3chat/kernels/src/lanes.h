// One source of a kernel for all variants: its body is written once in terms of W float32 lanes (the type F), and
// each_variant.h includes it in one namespace a variant. A body has no include guard and includes nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "pool.h"
#include "variant.h"
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC's own headers leave what is masked away undefined
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LANE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

// Clang marks functions in another way than GCC: it builds the portable body alone.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define E3_X86_BODIES 1
#else
#define E3_X86_BODIES 0
#endif

namespace e3 {
using bf16 = std::uint16_t;
}
