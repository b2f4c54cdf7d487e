#include "lockstep/kernels/pooled_conv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/graph/ops/conv.h"

namespace lockstep {
namespace {

// The limit for the intermediate image: less than half of a core's cache of 1 MiB.
constexpr std::int64_t kMaxBytes = 448 * 1024;
constexpr std::size_t kAlignment = 64;

using KernelsOf = const KernelLibrary& (*)();

// How many threads can run at once on this machine; the same in every plan of a process.
std::int64_t max_lanes() {
  constexpr std::int64_t kMost = 64;
  return std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, kMost);
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t bytes_of_image(const Shape& shape) {
  return shape.elements() / shape[0] * std::int64_t{sizeof(float)};
}

bool is_backward(const KernelCall& call) {
  return call.node.op == Op::Conv2DGradFilter;
}

Shape filter_of(const KernelCall& call) {
  return is_backward(call) ? Shape{call.attrs().ints("filter_shape")} : call.in_shape(1);
}

Ints ints(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

// The two nodes for some of the images, in a separate graph. The intermediate value (`between`) is
// the first node's result and an input of the second: its first in the forward pass, else its
// second.
struct Pair {
  Pair(const KernelCall& call, std::int64_t images)
      : chunks(images == 0 ? 1 : call.in_shape(0)[0] / images) {
    const Attrs conv = without_pooling(call.attrs());
    Attrs pool = pooling_of(call.attrs());
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < call.in_count(); ++i) {
      ValueType type = call.input(i).type;
      if (is_by_image(call, i)) type.shape = type.shape.with(0, images);
      inputs.push_back(graph.input(fmt::format("x{}", i), type));
      graph.info(inputs.back().id()).layout = call.input(i).layout;
    }
    if (is_backward(call)) {
      const Shape y = conv_shape_of(inputs[0].shape(), filter_of(call), conv);
      pool.set("input_shape", ints(y));
      const Value image = graph.add1(Op::MaxPoolGrad, {inputs[1], inputs[2]}, pool);
      between = image.id();
      graph.add(Op::Conv2DGradFilter, std::array{inputs[0], image}, conv);
    } else {
      const Value image = graph.add(Op::Conv2D, inputs, conv)[0];
      between = image.id();
      graph.add1(Op::MaxPool, {image}, pool);
    }
  }

  // Takes over the layouts already decided; the intermediate value has the pooled image's layout.
  void lay_out(const KernelCall& call) {
    const Layout& pooled = is_backward(call) ? call.input(1).layout : call.output(0).layout;
    graph.info(between).layout = pooled;
    for (std::size_t i = 0; i < call.node.outputs.size(); ++i) {
      graph.info(second().outputs[i]).layout = call.output(i).layout;
    }
  }

  const Node& first() const { return graph.producer(between); }
  const Node& second() const { return graph.nodes().back(); }

  // Whether an input has a slice for each image: the image, its gradient, the argmax indices.
  static bool is_by_image(const KernelCall& call, std::size_t input) {
    return is_backward(call) || input == 0;
  }

  Graph graph;
  ValueId between = -1;
  std::int64_t chunks = 0;
};

// How many images are processed at a time: as many as fit and divide the batch evenly. The forward
// pass sums nothing over images, so there are few enough for every thread to get some.
template <bool kWhole>
std::int64_t images_at_a_time(const KernelCall& call) {
  const std::int64_t all = call.in_shape(0)[0];
  if (kWhole || all == 0) return all;
  const Shape y = conv_shape_of(call.in_shape(0), filter_of(call), call.attrs());
  std::int64_t images = std::clamp<std::int64_t>(kMaxBytes / bytes_of_image(y), 1, all);
  if (!is_backward(call)) images = std::clamp<std::int64_t>(all / max_lanes(), 1, images);
  while (all % images != 0) --images;
  return images;
}

template <bool kWhole>
Pair pair_of(const KernelCall& call) {
  Pair pair(call, images_at_a_time<kWhole>(call));
  pair.lay_out(call);
  return pair;
}

// Offsets in the workspace: for each thread the intermediate value and the workspace of the two
// kernels, then the gradients of each chunk.
struct WorkspaceLayout {
  WorkspaceLayout(const Pair& pair, const KernelLibrary& library, bool backward)
      : between(aligned(pair.graph.bytes(pair.between))),
        lane(between + aligned(std::max(library.workspace_bytes(pair.graph, pair.first()),
                                        library.workspace_bytes(pair.graph, pair.second())))),
        sums(static_cast<std::size_t>(std::min(pair.chunks, max_lanes())) * lane),
        bytes(sums) {
    if (!backward) return;
    for (ValueId id : pair.second().outputs) chunk += aligned(pair.graph.bytes(id));
    bytes += static_cast<std::size_t>(pair.chunks) * chunk;
  }

  std::size_t between, lane, sums, bytes;
  std::size_t chunk = 0;  // bytes of a chunk's gradients
};

class PooledKernel final : public Kernel {
 public:
  PooledKernel(const KernelCall& call, Pair pair, const KernelLibrary& library)
      : pair_(std::move(pair)),
        backward_(is_backward(call)),
        workspace_layout_(pair_, library, backward_),
        firsts_(static_cast<std::size_t>(pair_.chunks)),
        seconds_(firsts_.size()) {
    for (auto& kernel : firsts_) kernel = library.make(pair_.graph, pair_.first());
    for (auto& kernel : seconds_) kernel = library.make(pair_.graph, pair_.second());
    // oneDNN's filter gradients must not run concurrently on the threads of a loop.
    const KernelDef& second = library.find({pair_.graph, pair_.second(), library.context()});
    ensure(!backward_ || pair_.chunks == 1 || second.name.starts_with("cpu."),
           "[conv2d] {}: {} cannot compute a pooled gradient in chunks", call.node.name,
           second.name);
    for (std::size_t i = 0; i < call.in_count(); ++i) {
      const bool moves = Pair::is_by_image(call, i);
      strides_.push_back(moves ? pair_.graph.bytes(pair_.graph.inputs()[i].second) : 0);
    }
    for (ValueId id : pair_.second().outputs) output_bytes_.push_back(pair_.graph.bytes(id));
  }

  void bind(const Binding& binding) override {
    binding_ = binding;
    lanes_ = std::min({pair_.chunks, max_lanes(), std::int64_t{threads_of_a_loop()}});
    for (std::int64_t lane = 0; lane < lanes_; ++lane) {
      for (std::int64_t i = begin_of(lane); i < begin_of(lane + 1); ++i) bind_chunk(lane, i);
    }
  }

  void run(Stream& stream) override {
    parallel_for(lanes_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin_of(begin); i < begin_of(end); ++i) {
        firsts_[static_cast<std::size_t>(i)]->run(stream);
        seconds_[static_cast<std::size_t>(i)]->run(stream);
      }
    });
    if (backward_) add_up();
  }

 private:
  std::int64_t begin_of(std::int64_t lane) const { return pair_.chunks * lane / lanes_; }

  void bind_chunk(std::int64_t lane, std::int64_t i) {
    const auto chunk = static_cast<std::size_t>(i);
    std::byte* const between =
        binding_.workspace + static_cast<std::size_t>(lane) * workspace_layout_.lane;
    std::byte* const scratch = between + workspace_layout_.between;
    const auto input = [&](std::size_t k) { return binding_.inputs[k] + chunk * strides_[k]; };
    Binding first{.inputs = {}, .outputs = {between}, .workspace = scratch};
    Binding second{.inputs = {}, .outputs = {}, .workspace = scratch};
    if (backward_) {
      first.inputs = {input(1), input(2)};
      second.inputs = {input(0), between};
    } else {
      for (std::size_t k = 0; k < strides_.size(); ++k) first.inputs.push_back(input(k));
      second.inputs = {between};
    }
    std::byte* sums = sums_of(chunk);
    for (std::size_t k = 0; k < binding_.outputs.size(); ++k) {
      const std::size_t bytes = output_bytes_[k];
      second.outputs.push_back(backward_ ? sums : binding_.outputs[k] + chunk * bytes);
      sums += aligned(bytes);
    }
    firsts_[chunk]->bind(first);
    seconds_[chunk]->bind(second);
  }

  std::byte* sums_of(std::size_t chunk) const {
    return binding_.workspace + workspace_layout_.sums + chunk * workspace_layout_.chunk;
  }

  // A gradient is the sum over the chunks, always in their order, whatever the number of threads.
  void add_up() const {
    std::size_t offset = 0;
    for (std::size_t k = 0; k < binding_.outputs.size(); ++k) {
      const std::size_t bytes = output_bytes_[k];
      std::memcpy(binding_.outputs[k], sums_of(0) + offset, bytes);
      float* const total = binding_.out<float>(k);
      for (std::size_t chunk = 1; chunk < firsts_.size(); ++chunk) {
        const auto* part = reinterpret_cast<const float*>(sums_of(chunk) + offset);
        for (std::size_t i = 0; i < bytes / sizeof(float); ++i) total[i] += part[i];
      }
      offset += aligned(bytes);
    }
  }

  Pair pair_;
  bool backward_;
  WorkspaceLayout workspace_layout_;
  std::vector<std::unique_ptr<Kernel>> firsts_, seconds_;  // per chunk
  std::vector<std::size_t> strides_;                       // bytes between chunks, per input
  std::vector<std::size_t> output_bytes_;                  // of a chunk, per output
  Binding binding_;
  std::int64_t lanes_ = 1;
};

// Whether each image is contiguous, so that some of the images form a valid value: no axis with
// more than one block comes before the batch axis.
bool images_are_contiguous(const Shape& shape, const Layout& layout) {
  std::vector<std::int64_t> block(static_cast<std::size_t>(shape.rank()), 1);
  for (const auto& [axis, size] : layout.blocks) block[static_cast<std::size_t>(axis)] *= size;
  for (int axis : layout.order) {
    if (axis == 0) return block[0] == 1;
    if (shape[axis] > block[static_cast<std::size_t>(axis)]) return false;
  }
  return true;
}
bool images_are_contiguous(const ValueInfo& value) {
  return images_are_contiguous(value.type.shape, value.layout);
}

// The layouts the two kernels prefer; the intermediate value has the layout the pooling wants.
template <KernelsOf kKernels>
NodeLayouts layouts(const KernelCall& call) {
  if (!is_pooled(call.attrs())) return {};
  Pair pair(call, images_at_a_time<false>(call));
  const KernelLibrary& library = kKernels();
  const auto by_image = [&](ValueId id, const Layout& layout) {
    return images_are_contiguous(pair.graph.type(id).shape, layout) ? layout : Layout{};
  };
  NodeLayouts first = library.layouts(pair.graph, pair.first());
  Layout& between = pair.graph.info(pair.between).layout;
  between = by_image(pair.between, first.outputs[0]);
  NodeLayouts second = library.layouts(pair.graph, pair.second());
  if (is_backward(call) && between.row_major()) {
    // Not decided yet: take the layout the convolution prefers.
    between = by_image(pair.between, second.inputs[1]);
    first.inputs = {between, between};
    second = library.layouts(pair.graph, pair.second());
  }
  if (is_backward(call)) {
    const Node& unpool = pair.first();
    return {
        {by_image(pair.second().inputs[0], second.inputs[0]),
         by_image(unpool.inputs[0], first.inputs[0]), by_image(unpool.inputs[1], first.inputs[1])},
        second.outputs};
  }
  first.inputs[0] = by_image(pair.first().inputs[0], first.inputs[0]);
  return {first.inputs, second.outputs};
}

// In the layouts above: the pooled image and its argmax indices have the same layout, which the
// intermediate value can have, too.
template <bool kWhole>
bool supports(const KernelCall& call) {
  if (!is_pooled(call.attrs()) || (kWhole && !call.row_major())) return false;
  const bool back = is_backward(call);
  const ValueInfo& pooled = back ? call.input(1) : call.output(0);
  const ValueInfo& places = back ? call.input(2) : call.output(1);
  const bool wide = call.in_dtype(0) == DType::F32 || (kWhole && call.in_dtype(0) == DType::F64);
  return wide && pooled.layout == places.layout && images_are_contiguous(pooled) &&
         images_are_contiguous(call.input(0));
}

template <KernelsOf kKernels, bool kWhole>
KernelDef definition(std::string_view name) {
  return {.name = name,
          .supports = supports<kWhole>,
          .make = [](const KernelCall& call) -> std::unique_ptr<Kernel> {
            return std::make_unique<PooledKernel>(call, pair_of<kWhole>(call), kKernels());
          },
          .workspace_bytes =
              [](const KernelCall& call) {
                return WorkspaceLayout(pair_of<kWhole>(call), kKernels(), is_backward(call)).bytes;
              },
          .layouts = kWhole ? nullptr : layouts<kKernels>};
}

}  // namespace

bool fits_between(const Shape& result) {
  return result.elements() > 0 && bytes_of_image(result) <= kMaxBytes;
}

void add_pooled_conv(KernelLibrary& library) {
  library.add(Op::Conv2D, definition<cpu_kernels, false>("cpu.pooled_conv2d"));
  library.add(Op::Conv2DGradFilter,
              definition<cpu_kernels, false>("cpu.pooled_conv2d_grad_filter"));
}

void add_reference_pooled_conv(KernelLibrary& library) {
  library.add(Op::Conv2D, definition<reference_kernels, true>("reference.pooled_conv2d"));
  library.add(Op::Conv2DGradFilter,
              definition<reference_kernels, true>("reference.pooled_conv2d_grad_filter"));
}

}  // namespace lockstep
