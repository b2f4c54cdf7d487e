// The CUDA source of a pointwise program: one kernel, "pointwise", that runs it over a table of
// segments which is its only argument.
//
// The kernel is bound by memory, or, where segments are small, by its launch. A block has a tile of
// one segment, which it finds by the number of the segment's first block. A thread loads several
// packs of neighbours of every operand before it computes anything; what is not a whole pack, or
// does not lie where packs do, goes one by one. 16-bit floats are computed with as f32 and rounded
// where they are stored or cast.
#pragma once

#include <span>
#include <string>

#include "lockstep/graph/ops/pointwise.h"

namespace lockstep {

inline constexpr int kPointwiseThreads = 256;

// How a program is spread over threads, and what the host must write into the table.
struct PointwiseShape {
  int pack = 1;      // neighbours in a pack
  int packs = 1;     // of a thread
  int capacity = 1;  // segments in a table
  int pointers = 0;  // of a segment: those of its operands, then those of its outputs

  int tile() const { return pack * packs * kPointwiseThreads; }
  // 64-bit words of a segment: its pointers, its number of elements, and (in one) its first block
  // and whether it lies where packs do.
  int segment_words() const { return pointers + 2; }
  // Those of a table: its segments, and how many there are.
  int table_words() const { return capacity * segment_words() + 1; }
};

struct PointwiseSource {
  std::string text;
  PointwiseShape shape;
};

// `one_element`: whether all segments have a single element.
PointwiseSource pointwise_source(const PointwiseForm& form, std::span<const DType> inputs,
                                 bool one_element);

}  // namespace lockstep
