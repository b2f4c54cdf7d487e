// Convolutions with strides of two over images of few channels, as a network's first one is, by our
// own kernels: libraries keep their tensor cores busy with channels, and here there are three.
//
// A pixel of four channels, zeros where the image has fewer, has 8 bytes, so the windows of
// neighbouring results begin 16 bytes apart. A block stages the rows of the image that a strip of
// results needs (rows, pixels, 4) in its memory, zeros for the padding; a window's row there is a
// run of 16-byte pieces of two pixels each, and matrices whose rows are windows are loaded from it
// as they lie: nothing is unfolded, nothing is written before. Products are of 16 bits, sums in
// f32. The image is read about once, the result, or its gradient, exactly once, and nothing else is
// large: memory is the bound that the kernels come near.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lockstep/kernels/cuda/conv_problem.h"

namespace lockstep {

// A problem and how it is dealt out: results in strips of some rows and columns of an image, strips
// in turn to as many blocks as are on the GPU at once, 64 channels out to each.
struct FewChannels {
  static constexpr int kOutputs = 64;                // channels out of a block
  static constexpr int kRingBytes = 3 * 64 * 128;    // of gradients, the filter's gradient alone
  static constexpr int kLeastShared = 64 * 224 * 2;  // of a block: it has the filter there first

  ConvWay way = ConvWay::Forward;
  DType dtype = DType::F16;
  DType filter_dtype = DType::F16;
  int n = 0, h = 0, w = 0, c = 0;
  int kh = 0, kw = 0, o = 0;
  int oh = 0, ow = 0;
  int top = 0, left = 0;
  bool small_window = false;  // up to (3, 4), else up to (7, 8)
  bool statistics = false;
  bool outputs_first = true;  // the filter lies as (o, kh, kw, c), else as (kh, kw, c, o)
  int rows = 0, columns = 0;  // results of a strip
  int down = 0, across = 0;   // strips of an image
  int blocks = 0;             // for each `kOutputs` channels out

  // Whether a problem is one of these: 16 bits, strides of two, no dilation, one group, up to four
  // channels, windows up to (7, 8), channels out in eights; forward or the filter's gradient.
  static bool fits(const ConvProblem& problem);
  // For a GPU of so many multiprocessors with so much memory for blocks each.
  FewChannels(const ConvProblem& problem, int multiprocessors, int multiprocessor_bytes);

  std::size_t workspace_bytes() const;
  // The image and the result lie at multiples of 16 bytes. With statistics, `sums` and `squares`,
  // (o) in f32, get the sums of the result, as rounded, and of its squares.
  void forward(const void* image, const void* filter, void* result, void* sums, void* squares,
               void* workspace, cudaStream_t stream) const;
  void grad_filter(const void* image, const void* result_grad, void* filter_grad, void* workspace,
                   cudaStream_t stream) const;

  constexpr int window_rows() const { return small_window ? 3 : 7; }
  constexpr int window_pieces() const { return small_window ? 2 : 4; }  // of two pixels, a row
  // Where a weight lies in the filter.
  constexpr int weight(int output, int y, int x, int channel) const {
    const int tap = (y * kw + x) * c + channel;
    return outputs_first ? output * kh * kw * c + tap : tap * o + output;
  }
  constexpr int output_tiles() const { return (o + kOutputs - 1) / kOutputs; }
  constexpr std::int64_t strips() const { return static_cast<std::int64_t>(n) * down * across; }
  constexpr int staged_rows() const { return 2 * (rows - 1) + window_rows(); }
  constexpr int staged_pixels() const { return 2 * (columns - 1 + window_pieces()); }
  constexpr int pitch() const { return 8 * staged_pixels(); }  // bytes of a staged row
  // Bytes of a row on its way there, as the image has it, with what surrounds it up to boundaries,
  // and kBeside more on each side, which are loaded with the first and last pixels, and left out.
  static constexpr int kBeside = 16;
  constexpr int raw_pitch() const {
    return (2 * c * staged_pixels() + 15) / 16 * 16 + 16 + 2 * kBeside;
  }
  // Of a block: two staged strips, one on its way, and gradients.
  constexpr int shared_bytes() const {
    const int strips = staged_rows() * (2 * pitch() + raw_pitch());
    return way == ConvWay::Forward ? (strips > kLeastShared ? strips : kLeastShared)
                                   : strips + kRingBytes;
  }
};

}  // namespace lockstep
