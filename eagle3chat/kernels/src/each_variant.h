// Includes the file named E3_BODY once a variant, in namespaces e3::portable, e3::avx2, e3::avx512 and e3::neon, each
// with the instructions of its variant allowed; with E3_WANT_BF16 in e3::avx512_bf16 too, which is e3::avx512 without.
// `E3_CALL(name, ...)` calls the name of the variant in use.
namespace e3 {
namespace {
namespace portable {
#include "lanes_portable.h"
#include "lanes_common.h"
#include E3_BODY
}  // namespace portable

#if E3_X86_BODIES
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "lanes_avx2.h"
#include "lanes_common.h"
#include E3_BODY
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#include "lanes_avx512.h"
#include "lanes_common.h"
#include E3_BODY
}  // namespace avx512
#pragma GCC pop_options

#if E3_WANT_BF16
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace avx512_bf16 {
#define E3_BF16_LANES 1
#include "lanes_avx512.h"
#include "lanes_common.h"
#include E3_BODY
#undef E3_BF16_LANES
}  // namespace avx512_bf16
#pragma GCC pop_options
#else
namespace avx512_bf16 = avx512;
#endif
#elif defined(__aarch64__)
namespace neon {  // no instructions beyond those that every AArch64 CPU has
#define E3_NEON_LANES 1
#include "lanes_portable.h"
#undef E3_NEON_LANES
#include "lanes_common.h"
#include E3_BODY
}  // namespace neon
#endif
}  // namespace
}  // namespace e3

#if E3_X86_BODIES
#define E3_CALL(name, ...)                           \
  switch (e3::variant()) {                           \
    case e3::kAvx512Bf16: e3::avx512_bf16::name(__VA_ARGS__); break; \
    case e3::kAvx512: e3::avx512::name(__VA_ARGS__); break; \
    case e3::kAvx2: e3::avx2::name(__VA_ARGS__); break;     \
    default: e3::portable::name(__VA_ARGS__);        \
  }
#elif defined(__aarch64__)
#define E3_CALL(name, ...)                         \
  if (e3::variant() == e3::kNeon) {                \
    e3::neon::name(__VA_ARGS__);                   \
  } else {                                         \
    e3::portable::name(__VA_ARGS__);               \
  }
#else
#define E3_CALL(name, ...) e3::portable::name(__VA_ARGS__)
#endif
