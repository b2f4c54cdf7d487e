// 16-bit floats on the CPU, computed by the f32 kernels: a node's 16-bit inputs are widened into
// the workspace, the same node in f32 (its twin) computes there, and 16-bit results are rounded.
// The results are those of f32 arithmetic with rounded storage; sums in particular are in f32. This
// costs one pass over every 16-bit value, and 4 bytes of workspace per element in addition to the
// twin's workspace. All values are row-major.
#include <algorithm>

#include "lockstep/base/half.h"
#include "lockstep/base/vectorized.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGrain = 16 * 1024;
constexpr std::size_t kAlignment = 64;

// Conversions between 16 bits and f32.
LOCKSTEP_VECTORIZED void widen_f16(const std::uint16_t* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = F16Format::widen(x[i]);
}
LOCKSTEP_VECTORIZED void widen_bf16(const std::uint16_t* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = BF16Format::widen(x[i]);
}
LOCKSTEP_VECTORIZED void round_f16(const float* x, std::uint16_t* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = F16Format::round(x[i]);
}
LOCKSTEP_VECTORIZED void round_bf16(const float* x, std::uint16_t* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = BF16Format::round(x[i]);
}

template <class From, class To>
void convert_all(void (*convert)(const From*, To*, std::int64_t), const std::byte* x, std::byte* y,
                 std::int64_t n) {
  const auto* from = reinterpret_cast<const From*>(x);
  auto* to = reinterpret_cast<To*>(y);
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    convert(from + begin, to + begin, end - begin);
  });
}

void widen(DType dtype, const std::byte* x, std::byte* y, std::int64_t n) {
  convert_all(dtype == DType::F16 ? widen_f16 : widen_bf16, x, y, n);
}
void round(DType dtype, const std::byte* x, std::byte* y, std::int64_t n) {
  convert_all(dtype == DType::F16 ? round_f16 : round_bf16, x, y, n);
}

ValueType in_f32(ValueType type) {
  if (is_small_float(type.dtype)) type.dtype = DType::F32;
  return type;
}

using Library = const KernelLibrary& (*)();

// The same node in f32, alone in a separate graph.
struct Twin {
  explicit Twin(const KernelCall& call) {
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < call.in_count(); ++i) {
      inputs.push_back(graph.input(fmt::format("x{}", i), in_f32(call.input(i).type)));
    }
    graph.add(call.node.op, inputs, call.attrs());
  }
  KernelCall call() const { return {graph, graph.nodes().back()}; }

  Graph graph;
};

// A 16-bit input or output, and the offset of its floats in the workspace.
struct Part {
  std::size_t index = 0;
  std::size_t offset = 0;
  std::int64_t elements = 0;
  DType dtype = DType::F16;
};

struct Parts {
  std::vector<Part> inputs;
  std::vector<Part> outputs;
  std::size_t bytes = 0;  // in total; the twin's workspace begins there
};

Parts parts_of(const KernelCall& call) {
  Parts parts;
  const auto place = [&](const std::vector<ValueId>& ids) {
    std::vector<Part> list;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const ValueType& type = call.graph.type(ids[i]);
      if (!is_small_float(type.dtype)) continue;
      list.push_back({i, parts.bytes, type.shape.elements(), type.dtype});
      const std::size_t bytes = static_cast<std::size_t>(type.shape.elements()) * sizeof(float);
      parts.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    return list;
  };
  parts.inputs = place(call.node.inputs);
  parts.outputs = place(call.node.outputs);
  return parts;
}

class HalfKernel final : public Kernel {
 public:
  HalfKernel(const KernelCall& call, Library library)
      : twin_(call),
        parts_(parts_of(call)),
        kernel_(library().find(twin_.call()).make(twin_.call())) {}

  void bind(const Binding& binding) override {
    binding_ = binding;
    Binding floats = binding;
    for (const Part& part : parts_.inputs) {
      floats.inputs[part.index] = binding.workspace + part.offset;
    }
    for (const Part& part : parts_.outputs) {
      floats.outputs[part.index] = binding.workspace + part.offset;
    }
    if (binding.workspace != nullptr) floats.workspace = binding.workspace + parts_.bytes;
    kernel_->bind(floats);
  }

  void run(Stream& stream) override {
    for (const Part& part : parts_.inputs) {
      widen(part.dtype, binding_.inputs[part.index], binding_.workspace + part.offset,
            part.elements);
    }
    kernel_->run(stream);
    for (const Part& part : parts_.outputs) {
      round(part.dtype, binding_.workspace + part.offset, binding_.outputs[part.index],
            part.elements);
    }
  }

 private:
  Twin twin_;
  Parts parts_;
  std::unique_ptr<Kernel> kernel_;
  Binding binding_;
};

bool has_small_floats(const KernelCall& call) {
  const auto is_small = [&](ValueId id) { return is_small_float(call.graph.type(id).dtype); };
  return std::ranges::any_of(call.node.inputs, is_small) ||
         std::ranges::any_of(call.node.outputs, is_small);
}

template <Library kLibrary>
KernelDef half_def(std::string_view name) {
  return {
      .name = name,
      .supports = [](const KernelCall& call) { return call.row_major() && has_small_floats(call); },
      .make = [](const KernelCall& call) -> std::unique_ptr<Kernel> {
        return std::make_unique<HalfKernel>(call, kLibrary);
      },
      .workspace_bytes =
          [](const KernelCall& call) {
            const Twin twin(call);
            return parts_of(call).bytes + kLibrary().workspace_bytes(twin.graph, twin.call().node);
          },
      .layouts = nullptr,
      .fuses_activation =
          [](const KernelCall& call, std::string_view activation) {
            const Twin twin(call);
            return kLibrary().fuses_activation(twin.graph, twin.call().node, activation);
          }};
}

// Ops that compute. The others only move elements, or convert them.
constexpr Op kComputing[] = {Op::Add,
                             Op::Sub,
                             Op::Mul,
                             Op::Div,
                             Op::Pow,
                             Op::Maximum,
                             Op::Minimum,
                             Op::Equal,
                             Op::NotEqual,
                             Op::Less,
                             Op::LessEqual,
                             Op::Greater,
                             Op::GreaterEqual,
                             Op::Neg,
                             Op::Abs,
                             Op::Sign,
                             Op::Exp,
                             Op::Log,
                             Op::Sqrt,
                             Op::Rsqrt,
                             Op::Square,
                             Op::Activation,
                             Op::ActivationGrad,
                             Op::ReduceSum,
                             Op::ReduceMean,
                             Op::ReduceMax,
                             Op::ArgMax,
                             Op::GatherGrad,
                             Op::MatMul,
                             Op::Conv2D,
                             Op::Conv2DGradInput,
                             Op::Conv2DGradFilter,
                             Op::MaxPool,
                             Op::MaxPoolGrad,
                             Op::AvgPool,
                             Op::AvgPoolGrad,
                             Op::BatchNorm,
                             Op::BatchNormGrad,
                             Op::BatchNormInference,
                             Op::LayerNorm,
                             Op::LayerNormGrad,
                             Op::Dropout,
                             Op::Softmax,
                             Op::SoftmaxGrad,
                             Op::SparseCrossEntropy,
                             Op::SparseCrossEntropyGrad,
                             Op::CrossEntropy,
                             Op::CrossEntropyGrad,
                             Op::GlobalNorm};

bool supports_cast(const KernelCall& call) {
  const DType from = call.in_dtype(0);
  const DType to = call.output(0).type.dtype;
  return call.row_major() &&
         ((is_small_float(from) && to == DType::F32) || (from == DType::F32 && is_small_float(to)));
}

std::unique_ptr<Kernel> make_cast(const KernelCall& call) {
  const DType from = call.in_dtype(0);
  const DType to = call.output(0).type.dtype;
  const std::int64_t n = call.out_shape(0).elements();
  return make_kernel([from, to, n](const Binding& binding) {
    if (to == DType::F32) {
      widen(from, binding.inputs[0], binding.outputs[0], n);
    } else {
      round(to, binding.inputs[0], binding.outputs[0], n);
    }
  });
}

template <Library kLibrary>
void add_all(KernelLibrary& library, std::string_view name, std::string_view cast_name) {
  for (const Op op : kComputing) library.add(op, half_def<kLibrary>(name));
  library.add(Op::Cast, {.name = cast_name, .supports = supports_cast, .make = make_cast});
}

}  // namespace

void add_reference_half(KernelLibrary& library) {
  add_all<reference_kernels>(library, "reference.half", "reference.half_cast");
}

void add_half_kernels(KernelLibrary& library) {
  add_all<cpu_kernels>(library, "cpu.half", "cpu.half_cast");
}

}  // namespace lockstep
