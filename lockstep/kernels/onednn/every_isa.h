// Includes the file LOCKSTEP_ISA_FILE once per instruction set, in the namespaces v4, v3 and
// any_isa (all three are the same with LOCKSTEP_ONE_ISA); kWidest is the number of floats in the
// widest vector. No #pragma once, because this file is meant to be included several times.
#if defined(__x86_64__) && !defined(LOCKSTEP_ONE_ISA)
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace lockstep::onednn::v4 {
constexpr int kWidest = 16;
#include LOCKSTEP_ISA_FILE
}  // namespace lockstep::onednn::v4
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace lockstep::onednn::v3 {
constexpr int kWidest = 8;
#include LOCKSTEP_ISA_FILE
}  // namespace lockstep::onednn::v3
#pragma GCC pop_options
#endif
namespace lockstep::onednn::any_isa {
constexpr int kWidest = 4;
#include LOCKSTEP_ISA_FILE
}  // namespace lockstep::onednn::any_isa
#if !defined(__x86_64__) || defined(LOCKSTEP_ONE_ISA)
namespace lockstep::onednn {
namespace v4 = any_isa;
namespace v3 = any_isa;
}  // namespace lockstep::onednn
#endif
