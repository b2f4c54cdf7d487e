// Our own kernels for convolutions with strides of two over images of few channels, such as the
// first layer of a network: libraries need many channels to fill tensor cores, and here there are
// three.
//
// A pixel is padded to four channels, 8 bytes, so the windows of neighbouring results begin 16
// bytes apart. A block stages the rows of the image that a strip of results needs in shared memory,
// as (rows, pixels, 4) with zeros for the padding. A row of a window is a sequence of 16-byte
// pieces of two pixels each, and the matrices whose rows are windows are loaded from there
// directly: there is no im2col. Products are in 16 bits, sums in f32. The image is read about once,
// the result or its gradient exactly once, and nothing else is large: the kernels come close to the
// memory bandwidth.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lockstep/kernels/cuda/conv/conv_problem.h"

namespace lockstep {

// A problem and its division: results are divided into strips of some rows and columns of an image,
// the strips are assigned in turn to as many blocks as run at once, 64 output channels per block.
struct FewChannels {
  static constexpr int kOutputs = 64;                // output channels per block
  static constexpr int kRingBytes = 3 * 64 * 128;    // of gradients, only for the filter's gradient
  static constexpr int kLeastShared = 64 * 224 * 2;  // per block: it loads the filter there first

  ConvWay way = ConvWay::Forward;
  DType dtype = DType::F16;
  DType filter_dtype = DType::F16;
  int n = 0, h = 0, w = 0, c = 0;
  int kh = 0, kw = 0, o = 0;
  int oh = 0, ow = 0;
  int top = 0, left = 0;
  bool small_window = false;  // up to (3, 4), otherwise up to (7, 8)
  bool statistics = false;
  bool outputs_first = true;  // the filter is stored as (o, kh, kw, c), otherwise (kh, kw, c, o)
  int rows = 0, columns = 0;  // results per strip
  int down = 0, across = 0;   // strips per image
  int blocks = 0;             // per `kOutputs` output channels

  // Whether these kernels support a problem: 16 bits, strides of two, no dilation, one group, up to
  // four channels, windows up to (7, 8), a multiple of eight output channels; forward or the
  // filter's gradient.
  static bool fits(const ConvProblem& problem);
  // For a GPU with so many multiprocessors, each with so many bytes of shared memory.
  FewChannels(const ConvProblem& problem, int multiprocessors, int multiprocessor_bytes);

  std::size_t workspace_bytes() const;
  // The image and the result must be aligned to 16 bytes. With statistics, `sums` and `squares`,
  // (o) in f32, receive the sums of the rounded result and of its squares.
  void forward(const void* image, const void* filter, void* result, void* sums, void* squares,
               void* workspace, cudaStream_t stream) const;
  void grad_filter(const void* image, const void* result_grad, void* filter_grad, void* workspace,
                   cudaStream_t stream) const;

  constexpr int window_rows() const { return small_window ? 3 : 7; }
  constexpr int window_pieces() const { return small_window ? 2 : 4; }  // of two pixels, per row
  // The index of a weight in the filter.
  constexpr int weight(int output, int y, int x, int channel) const {
    const int tap = (y * kw + x) * c + channel;
    return outputs_first ? output * kh * kw * c + tap : tap * o + output;
  }
  constexpr int output_tiles() const { return (o + kOutputs - 1) / kOutputs; }
  constexpr std::int64_t strips() const { return static_cast<std::int64_t>(n) * down * across; }
  constexpr int staged_rows() const { return 2 * (rows - 1) + window_rows(); }
  constexpr int staged_pixels() const { return 2 * (columns - 1 + window_pieces()); }
  constexpr int pitch() const { return 8 * staged_pixels(); }  // bytes of a staged row
  // Bytes of a fetched row before it is staged: as stored in the image, extended to 16-byte
  // boundaries, plus kBeside on each side, which are loaded with the first and last pixels and
  // ignored.
  static constexpr int kBeside = 16;
  constexpr int raw_pitch() const {
    return (2 * c * staged_pixels() + 15) / 16 * 16 + 16 + 2 * kBeside;
  }
  // Per block: two staged strips, one being fetched, and gradients.
  constexpr int shared_bytes() const {
    const int strips = staged_rows() * (2 * pitch() + raw_pitch());
    return way == ConvWay::Forward ? (strips > kLeastShared ? strips : kLeastShared)
                                   : strips + kRingBytes;
  }
};

}  // namespace lockstep
