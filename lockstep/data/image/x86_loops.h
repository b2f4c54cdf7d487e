// The two loops of a byte resize for AVX2 and AVX-512, with intrinsics because compilers do not
// find the multiply-add of pairs (pmaddwd) at their core. They exist only on x86-64.
#pragma once

#include "lockstep/data/image/loops.h"

namespace lockstep::x86 {

void blend_rows_avx2(const std::uint8_t* const* rows, const std::int16_t* weights, int tap_pairs,
                     std::size_t count, std::int16_t* out);
void blend_rows_avx512(const std::uint8_t* const* rows, const std::int16_t* weights, int tap_pairs,
                       std::size_t count, std::int16_t* out);
void blend_columns_avx2(const std::int16_t* row, const FixedColumns& columns,
                        const FixedAffine& affine, int channels, float* out);

}  // namespace lockstep::x86
