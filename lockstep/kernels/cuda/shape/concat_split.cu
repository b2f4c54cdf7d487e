// Concat and Split: the whole value is (outer, extent, …), and a part (band) is a slice along the
// second axis. Rows of parts are copied in vector loads of up to 16 bytes, as many parts at once as
// the parameters of a launch hold; a single row is a plain copy.
#include <algorithm>
#include <vector>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/bitcast.cuh"
#include "lockstep/kernels/cuda/primitives/walk.cuh"
#include "lockstep/kernels/cuda/shape/shape.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;               // vector loads in flight per thread
constexpr std::size_t kMostBands = 16;  // parts per launch
constexpr std::int64_t kMostIndices = std::int64_t{1} << 30;

struct Band {
  std::size_t bytes = 0;   // per row of the part
  std::size_t offset = 0;  // in a row of the whole
};

struct Bands {
  std::int64_t outer = 1;
  std::size_t bytes = 0;  // per row of the whole
  std::vector<Band> parts;

  Bands(const Graph& graph, const std::vector<ValueId>& ids, std::int64_t axis) {
    const Shape& first = graph.type(ids[0]).shape;
    for (int i = 0; i < axis; ++i) outer *= first[i];
    for (ValueId id : ids) {
      const ValueType& type = graph.type(id);
      std::size_t row = size_of(type.dtype);
      for (int i = static_cast<int>(axis); i < type.shape.rank(); ++i) {
        row *= static_cast<std::size_t>(type.shape[i]);
      }
      parts.push_back({row, bytes});
      bytes += row;
    }
  }
};

// Some parts of some rows, in units of Word; blockIdx.y is the part.
template <class Word>
struct BandCopies {
  Word* part[kMostBands];
  Word* whole[kMostBands];      // the beginning of the part in the whole
  FastDivider row[kMostBands];  // by the words per row of the part
  std::uint32_t words[kMostBands];
  std::int64_t pitch = 0;  // words per row of the whole
};

template <class Word, bool kToWhole>
__global__ void __launch_bounds__(kThreads) copy_bands(BandCopies<Word> copies) {
  const int band = blockIdx.y;
  const std::uint32_t words = copies.words[band];
  const FastDivider divider = copies.row[band];
  const std::uint32_t first = blockIdx.x * (kThreads * kLoads) + threadIdx.x;
  Word* part = copies.part[band];
  Word* whole = copies.whole[band];
  Word loaded[kLoads];
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const std::uint32_t at = first + load * kThreads;
    if (at >= words) continue;
    std::uint32_t row = at;
    const std::uint32_t column = divider.split(row);
    loaded[load] = kToWhole ? part[at] : whole[row * copies.pitch + column];
  }
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const std::uint32_t at = first + load * kThreads;
    if (at >= words) continue;
    std::uint32_t row = at;
    const std::uint32_t column = divider.split(row);
    (kToWhole ? whole[row * copies.pitch + column] : part[at]) = loaded[load];
  }
}

// The memory of the whole and of all parts.
struct Places {
  std::byte* whole = nullptr;
  std::vector<std::byte*> parts;
};

// Rows [first, first + rows) of the parts [begin, end).
template <class Word, bool kToWhole>
void launch_some(const Bands& bands, const Places& places, std::size_t begin, std::size_t end,
                 std::int64_t first, std::int64_t rows, cudaStream_t stream) {
  BandCopies<Word> copies;
  copies.pitch = static_cast<std::int64_t>(bands.bytes / sizeof(Word));
  std::uint32_t most = 0;
  unsigned count = 0;
  const auto row = static_cast<std::size_t>(first);
  for (std::size_t i = begin; i < end; ++i) {
    const Band& band = bands.parts[i];
    if (band.bytes == 0) continue;
    const auto words = static_cast<std::int64_t>(band.bytes / sizeof(Word));
    copies.part[count] = reinterpret_cast<Word*>(places.parts[i] + row * band.bytes);
    copies.whole[count] = reinterpret_cast<Word*>(places.whole + row * bands.bytes + band.offset);
    copies.row[count] = FastDivider(words);
    copies.words[count] = static_cast<std::uint32_t>(words * rows);
    most = std::max(most, copies.words[count]);
    ++count;
  }
  if (count == 0) return;
  const dim3 grid(cuda_blocks(most, kThreads * kLoads, kMostIndices), count);
  copy_bands<Word, kToWhole><<<grid, kThreads, 0, stream>>>(copies);
  check_launch("copy_bands");
}

template <bool kToWhole>
void copy_all(const Bands& bands, const Places& places, cudaStream_t stream) {
  std::size_t all = bands.bytes | address_of(places.whole);
  std::size_t widest = 1;
  for (std::size_t i = 0; i < bands.parts.size(); ++i) {
    const Band& band = bands.parts[i];
    if (band.bytes == 0) continue;
    all |= band.bytes | band.offset | address_of(places.parts[i]);
    widest = std::max(widest, band.bytes);
  }
  const std::size_t word = widest_word(all);
  const auto row_words = static_cast<std::int64_t>(widest / word);
  const std::int64_t rows = std::max<std::int64_t>(1, kMostIndices / row_words);
  dispatch_word(word, [&](auto zero) {
    using Word = decltype(zero);
    for (std::int64_t first = 0; first < bands.outer; first += rows) {
      for (std::size_t begin = 0; begin < bands.parts.size(); begin += kMostBands) {
        const std::size_t end = std::min(begin + kMostBands, bands.parts.size());
        launch_some<Word, kToWhole>(bands, places, begin, end, first,
                                    std::min(rows, bands.outer - first), stream);
      }
    }
  });
}

// One row: the parts are contiguous.
template <bool kToWhole>
void copy_one_row(const Bands& bands, const Places& places, cudaStream_t stream) {
  for (std::size_t i = 0; i < bands.parts.size(); ++i) {
    std::byte* band = places.whole + bands.parts[i].offset;
    std::byte* to = kToWhole ? band : places.parts[i];
    copy_bytes(to, kToWhole ? places.parts[i] : band, bands.parts[i].bytes, stream);
  }
}

template <bool kToWhole>
void copy_bands_of(const Bands& bands, const Places& places, cudaStream_t stream) {
  if (bands.outer == 0 || bands.bytes == 0) return;
  if (bands.outer == 1) return copy_one_row<kToWhole>(bands, places, stream);
  copy_all<kToWhole>(bands, places, stream);
}

// Drops const from memory that is only read.
std::byte* readable(const std::byte* place) {
  return const_cast<std::byte*>(place);
}

template <bool kToWhole>
class BandsKernel final : public Kernel {
 public:
  explicit BandsKernel(Bands bands) : bands_(std::move(bands)) {}

  void bind(const Binding& binding) override {
    if (kToWhole) {
      places_ = {binding.outputs[0], {}};
      for (const std::byte* part : binding.inputs) places_.parts.push_back(readable(part));
    } else {
      places_ = {readable(binding.inputs[0]), binding.outputs};
    }
  }
  void run(Stream& stream) override {
    copy_bands_of<kToWhole>(bands_, places_, cuda_stream(stream));
  }

 private:
  Bands bands_;
  Places places_;
};

std::unique_ptr<Kernel> make_concat(const KernelCall& call) {
  return std::make_unique<BandsKernel<true>>(
      Bands(call.graph, call.node.inputs, call.attrs().integer("axis")));
}

std::unique_ptr<Kernel> make_split(const KernelCall& call) {
  return std::make_unique<BandsKernel<false>>(
      Bands(call.graph, call.node.outputs, call.attrs().integer("axis")));
}

bool supports(const KernelCall& call) {
  return call.row_major();
}

}  // namespace

void add_cuda_concat_split(KernelLibrary& library) {
  library.add(Op::Concat, {.name = "cuda.concat", .supports = supports, .make = make_concat});
  library.add(Op::Split, {.name = "cuda.split", .supports = supports, .make = make_split});
}

}  // namespace lockstep
