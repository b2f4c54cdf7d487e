#include "lockstep/kernels/cuda/conv/conv_small_channels.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr int kMostRows = 8;
constexpr int kMostColumns = 128;
constexpr int kRun = 64;                 // results that the warps of a block compute at once
constexpr int kRowTime = 7;              // results that can be computed while a row is staged
constexpr int kResidentBlocks = 2;       // per multiprocessor
constexpr int kReservedBytes = 1 << 10;  // of a block's shared memory, by CUDA

int parts(int whole, int most) {
  return (whole + most - 1) / most;
}

}  // namespace

bool FewChannels::fits(const ConvProblem& p) {
  constexpr std::int64_t kMostExtent = 1 << 16;
  constexpr std::int64_t kMostStrips = 1 << 30;
  return p.dtype != DType::F32 && p.way != ConvWay::GradInput && p.groups == 1 && p.c <= 4 &&
         p.stride_h == 2 && p.stride_w == 2 && p.dilation_h == 1 && p.dilation_w == 1 &&
         p.kh <= 7 && p.kw <= 8 && p.o % 8 == 0 && p.o <= 1024 && p.ow > 1 &&
         std::max({p.h, p.w, p.oh, p.ow, p.top, p.left}) < kMostExtent &&
         p.n * std::max(p.h, p.oh * p.ow) < kMostStrips;
}

FewChannels::FewChannels(const ConvProblem& p, int multiprocessors, int multiprocessor_bytes)
    : way(p.way),
      dtype(p.dtype),
      filter_dtype(p.filter_dtype),
      n(static_cast<int>(p.n)),
      h(static_cast<int>(p.h)),
      w(static_cast<int>(p.w)),
      c(static_cast<int>(p.c)),
      kh(static_cast<int>(p.kh)),
      kw(static_cast<int>(p.kw)),
      o(static_cast<int>(p.o)),
      oh(static_cast<int>(p.oh)),
      ow(static_cast<int>(p.ow)),
      top(static_cast<int>(p.top)),
      left(static_cast<int>(p.left)),
      small_window(p.kh <= 3 && p.kw <= 4),
      statistics(p.statistics),
      outputs_first(p.outputs_first) {
  const int room = multiprocessor_bytes / kResidentBlocks - kReservedBytes;
  rows = 1;
  do {
    columns = parts(ow, ++across);
  } while (columns > 2 && (columns > kMostColumns || shared_bytes() > room));
  // The number of rows for which the slowest block finishes first.
  const int in_place = std::max(kResidentBlocks * multiprocessors / output_tiles(), 1);
  const auto time = [&] {
    const std::int64_t turns =
        (static_cast<std::int64_t>(n) * parts(oh, rows) * across + in_place - 1) / in_place;
    return turns * (parts(rows * columns, kRun) * kRun + staged_rows() * kRowTime);
  };
  int best = 1;
  std::int64_t best_time = time();
  for (rows = 2; rows <= std::min(kMostRows, oh) && shared_bytes() <= room; ++rows) {
    if (time() > best_time) continue;
    best = rows;
    best_time = time();
  }
  down = parts(oh, best);
  rows = parts(oh, down);
  blocks = static_cast<int>(std::min<std::int64_t>(in_place, strips()));
}

std::size_t FewChannels::workspace_bytes() const {
  const auto parts = static_cast<std::size_t>(blocks) * static_cast<std::size_t>(output_tiles());
  if (way == ConvWay::Forward) return statistics ? parts * 2 * kOutputs * sizeof(float) : 0;
  // If the window has two pieces, the warps that share one keep separate sums.
  const int turns = 4 / window_pieces();
  const auto weights = static_cast<std::size_t>(kOutputs * window_rows() * window_pieces() * 8);
  return parts * static_cast<std::size_t>(turns) * weights * sizeof(float);
}

}  // namespace lockstep
