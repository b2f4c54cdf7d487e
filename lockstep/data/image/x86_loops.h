// The two loops of a resize of bytes with AVX2 and AVX-512, written with intrinsics because their
// core is a multiplication of pairs (pmaddwd) that compilers do not find. On other machines they
// are not there, and nobody asks for them.
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
