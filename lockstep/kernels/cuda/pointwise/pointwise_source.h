// The CUDA source of a pointwise program: one kernel, "pointwise", that runs it over a table of
// segments, its only argument.
//
// The kernel is bound by memory bandwidth, or by launch latency if segments are small. A block
// processes a tile of one segment, which it finds by binary search over the segments' first blocks.
// A thread loads several vectors of every operand before it computes anything; elements that do not
// fill a vector or are not aligned to one are processed one by one. 16-bit floats are computed in
// f32 and rounded when they are stored or cast.
#pragma once

#include <span>
#include <string>

#include "lockstep/graph/ops/pointwise.h"

namespace lockstep {

inline constexpr int kPointwiseThreads = 256;

// How a program is divided among threads, and what the host must write into the table.
struct PointwiseShape {
  int vector_size = 1;  // elements per vector
  int vectors = 1;      // vectors per thread
  int capacity = 1;     // segments in a table
  int pointers = 0;     // per segment: those of its operands, then those of its outputs

  int tile() const { return vector_size * vectors * kPointwiseThreads; }
  // 64-bit words per segment: its pointers, its number of elements, and (in one word) its first
  // block and whether it is aligned to vectors.
  int segment_words() const { return pointers + 2; }
  // 64-bit words per table: its segments, and their number.
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
