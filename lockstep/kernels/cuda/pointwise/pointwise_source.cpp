#include "lockstep/kernels/cuda/pointwise/pointwise_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/kernels/cuda/pointwise/pointwise_prelude.h"

namespace lockstep {
namespace {

constexpr int kVectorBytes = 16;
constexpr int kMostVectors = 4;       // vectors per thread
constexpr int kMostHeld = 64;         // 32-bit registers for what a thread has loaded
constexpr int kArgumentBytes = 4000;  // of a launch; CUDA's limit is 4096

// The type in which a dtype is stored, and below, the one in which it is computed.
std::string_view stored(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "float";
    case DType::F64:
      return "double";
    case DType::F16:
      return "f16";
    case DType::BF16:
      return "bf16";
    case DType::I32:
      return "int";
    case DType::I64:
      return "long long";
    case DType::U8:
      return "unsigned char";
    case DType::Bool:
      return "bool";
  }
  fail<InternalError>("[pointwise] unknown dtype");
}

bool is_half(DType dtype) {
  return dtype == DType::F16 || dtype == DType::BF16;
}

std::string_view computed(DType dtype) {
  return is_half(dtype) ? "float" : stored(dtype);
}

std::string double_text(double value) {
  return fmt::format("__longlong_as_double({:#x}ll)", std::bit_cast<std::uint64_t>(value));
}

std::string literal_text(const PointwiseOperand& literal) {
  if (literal.dtype == DType::F64) return double_text(literal.real);
  if (is_floating(literal.dtype)) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(literal.real));
    return fmt::format("__uint_as_float({:#x}u)", bits);
  }
  return fmt::format("(({}){:#x}ull)", stored(literal.dtype),
                     static_cast<std::uint64_t>(literal.integer));
}

std::string operand_text(const PointwiseOperand& operand) {
  switch (operand.kind) {
    case PointwiseOperand::Kind::Input:
      return fmt::format("x{}", operand.index);
    case PointwiseOperand::Kind::Result:
      return fmt::format("r{}", operand.index);
    default:
      return literal_text(operand);
  }
}

std::string activation_text(const PointwiseInstruction& instruction,
                            const std::vector<std::string>& operands) {
  const std::string& kind = instruction.attrs.text("kind");
  const bool grad = instruction.op == Op::ActivationGrad;
  if (kind == "leaky_relu") {
    return fmt::format("leaky_relu{}({}, {})", grad ? "_grad" : "", fmt::join(operands, ", "),
                       double_text(instruction.attrs.real("alpha")));
  }
  if (grad) return fmt::format("{}_grad({})", kind, fmt::join(operands, ", "));
  const std::string name = kind == "tanh" ? "hyperbolic" : kind == "sigmoid" ? "logistic" : kind;
  return fmt::format("{}({})", name, operands[0]);
}

// The expression of an instruction; `result` is the dtype of its result.
std::string expression(const PointwiseInstruction& instruction, DType result) {
  std::vector<std::string> operands;
  for (const PointwiseOperand& operand : instruction.operands) {
    operands.push_back(operand_text(operand));
  }
  const auto between = [&](const char* sign) {
    return fmt::format("{} {} {}", operands[0], sign, operands[1]);
  };
  switch (instruction.op) {
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Maximum:
    case Op::Minimum:
    case Op::Neg:
    case Op::Sign:
      return fmt::format("{}({})", op_def(instruction.op).name, fmt::join(operands, ", "));
    case Op::Div:
      return between("/");
    case Op::Pow:
      return fmt::format("power({}, {})", operands[0], operands[1]);
    case Op::Equal:
      return between("==");
    case Op::NotEqual:
      return between("!=");
    case Op::Less:
      return between("<");
    case Op::LessEqual:
      return between("<=");
    case Op::Greater:
      return between(">");
    case Op::GreaterEqual:
      return between(">=");
    case Op::LogicalAnd:
      return between("&");
    case Op::LogicalOr:
      return between("|");
    case Op::LogicalNot:
      return "!" + operands[0];
    case Op::Abs:
      return fmt::format("absolute({})", operands[0]);
    case Op::Exp:
      return fmt::format("exponential({})", operands[0]);
    case Op::Log:
      return fmt::format("logarithm({})", operands[0]);
    case Op::Sqrt:
      return fmt::format("root({})", operands[0]);
    case Op::Rsqrt:
      return fmt::format("1 / root({})", operands[0]);
    case Op::Square:
      return fmt::format("mul({0}, {0})", operands[0]);
    case Op::Activation:
    case Op::ActivationGrad:
      return activation_text(instruction, operands);
    case Op::Cast: {
      const std::string converted =
          fmt::format("Convert<{}>::of({})", computed(result), operands[0]);
      return is_half(result) ? fmt::format("rounded<{}>({})", stored(result), converted)
                             : converted;
    }
    case Op::Select:
      return fmt::format("{} ? {} : {}", operands[0], operands[1], operands[2]);
    default:
      fail<InternalError>("[pointwise] {} is not elementwise", op_def(instruction.op).name);
  }
}

class SourceWriter {
 public:
  SourceWriter(const PointwiseForm& form, std::span<const DType> inputs, bool one_element)
      : form_(form), inputs_(inputs), results_(result_dtypes(form.program, inputs)) {
    shape_.pointers = static_cast<int>(form.operands + form.outputs());
    choose_vectors(one_element);
    const int fitting = (kArgumentBytes / 8 - 1) / shape_.segment_words();
    ensure(fitting > 0, "[pointwise] {} pointers do not fit into the arguments of a launch",
           shape_.pointers);
    shape_.capacity = form.count == 1 ? 1 : fitting;
  }

  PointwiseSource write() {
    text_ = kPointwisePrelude;
    write_table();
    write_element();
    write_kernel();
    return {std::move(text_), shape_};
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  // Vectors of 16 bytes for the largest element type, as many as fit into registers.
  void choose_vectors(bool one_element) {
    int held = 0;
    std::size_t largest = 1;
    for (std::size_t i = 0; i < form_.operands; ++i) {
      if (form_.scalar[i]) continue;
      largest = std::max(largest, size_of(inputs_[i]));
      held += size_of(inputs_[i]) == 8 ? 2 : 1;
    }
    for (const std::int64_t result : form_.results) {
      largest = std::max(largest, size_of(results_[static_cast<std::size_t>(result)]));
    }
    if (one_element) return;
    shape_.vector_size = kVectorBytes / static_cast<int>(std::max<std::size_t>(largest, 2));
    shape_.vectors = kMostVectors;
    while (shape_.vectors > 1 && held * shape_.vector_size * shape_.vectors > kMostHeld)
      shape_.vectors /= 2;
    while (shape_.vector_size > 1 && held * shape_.vector_size > kMostHeld) shape_.vector_size /= 2;
  }

  bool is_target(std::size_t operand) const {
    return std::ranges::count(form_.targets, static_cast<std::int64_t>(operand)) > 0;
  }
  DType result_dtype(std::size_t i) const {
    return results_[static_cast<std::size_t>(form_.results[i])];
  }

  // Calls f(index, name of its destination) for every result that is stored.
  template <class F>
  void for_results(F&& f) const {
    std::size_t output = 0;
    for (std::size_t i = 0; i < form_.results.size(); ++i) {
      f(i,
        form_.targets[i] < 0 ? fmt::format("y{}", output++) : fmt::format("x{}", form_.targets[i]));
    }
  }

  void write_table() {
    line("struct Segment {{");
    for (std::size_t i = 0; i < form_.operands; ++i) {
      line("  {}{}* x{};", is_target(i) ? "" : "const ", stored(inputs_[i]), i);
    }
    for_results([&](std::size_t i, const std::string& place) {
      if (form_.targets[i] < 0) line("  {}* {};", stored(result_dtype(i)), place);
    });
    line("  long long count;\n  unsigned first_block;\n  unsigned vectorised;\n}};");
    line("struct Table {{\n  Segment segments[{}];\n  unsigned long long count;\n}};",
         shape_.capacity);
  }

  void write_element() {
    std::vector<std::string> parameters;
    for (std::size_t i = 0; i < form_.operands; ++i) {
      parameters.push_back(fmt::format("{} x{}", computed(inputs_[i]), i));
    }
    for (std::size_t i = 0; i < form_.results.size(); ++i) {
      parameters.push_back(fmt::format("{}& z{}", computed(result_dtype(i)), i));
    }
    line("INLINE void element({}) {{", fmt::join(parameters, ", "));
    for (std::size_t i = 0; i < form_.program.size(); ++i) {
      line("  const {} r{} = {};", computed(results_[i]), i,
           expression(form_.program[i], results_[i]));
    }
    for (std::size_t i = 0; i < form_.results.size(); ++i)
      line("  z{} = r{};", i, form_.results[i]);
    line("}}");
  }

  // Writes a call of element(…) with read(i) as operand i; its results are z0, z1, ….
  template <class Read>
  void write_call(const char* indent, Read&& read) {
    std::vector<std::string> arguments;
    for (std::size_t i = 0; i < form_.operands; ++i) arguments.push_back(read(i));
    for (std::size_t i = 0; i < form_.results.size(); ++i) {
      line("{}{} z{};", indent, computed(result_dtype(i)), i);
      arguments.push_back(fmt::format("z{}", i));
    }
    line("{}element({});", indent, fmt::join(arguments, ", "));
  }

  void write_kernel() {
    line("extern \"C\" __global__ void __launch_bounds__({})", kPointwiseThreads);
    line("    pointwise(const __grid_constant__ Table table) {{");
    write_search();
    line("  const long long begin = (long long)(blockIdx.x - segment.first_block) * {};",
         shape_.tile());
    line("  const long long rest = segment.count - begin;");
    line("  const int left = rest < {0} ? (int)rest : {0};", shape_.tile());
    line("  const int vectors = segment.vectorised ? left / {} : 0;", shape_.vector_size);
    for (std::size_t i = 0; i < form_.operands; ++i) {
      if (form_.scalar[i]) {
        line("  const {} s{} = widen(*segment.x{});", computed(inputs_[i]), i, i);
      } else {
        line("  {}{}* x{} = segment.x{} + begin;", is_target(i) ? "" : "const ", stored(inputs_[i]),
             i, i);
      }
    }
    for (std::size_t o = 0; o < form_.outputs(); ++o) {
      line("  auto* y{} = segment.y{} + begin;", o, o);
    }
    write_vectors();
    write_rest();
    line("}}");
  }

  void write_search() {
    if (shape_.capacity == 1) {
      line("  const Segment& segment = table.segments[0];");
      return;
    }
    line("  unsigned low = 0, high = (unsigned)table.count - 1;");
    line("  while (low < high) {{");
    line("    const unsigned middle = (low + high + 1) / 2;");
    line("    if (blockIdx.x >= table.segments[middle].first_block) low = middle;");
    line("    else high = middle - 1;");
    line("  }}");
    line("  const Segment& segment = table.segments[low];");
  }

  void write_vectors() {
    for (std::size_t i = 0; i < form_.operands; ++i) {
      if (!form_.scalar[i]) {
        line("  Vector<{}, {}> p{}[{}];", stored(inputs_[i]), shape_.vector_size, i,
             shape_.vectors);
      }
    }
    write_vector_loop([&] {
      for (std::size_t i = 0; i < form_.operands; ++i) {
        if (!form_.scalar[i]) {
          line("    p{0}[k] = load<{1}, {2}>(x{0} + at * {2});", i, stored(inputs_[i]),
               shape_.vector_size);
        }
      }
    });
    write_vector_loop([&] {
      for (std::size_t i = 0; i < form_.results.size(); ++i) {
        line("    Vector<{}, {}> q{};", stored(result_dtype(i)), shape_.vector_size, i);
      }
      line("#pragma unroll\n    for (int i = 0; i < {}; ++i) {{", shape_.vector_size);
      write_call("      ", [&](std::size_t i) {
        return form_.scalar[i] ? fmt::format("s{}", i) : fmt::format("widen(p{}[k].items[i])", i);
      });
      for (std::size_t i = 0; i < form_.results.size(); ++i) {
        line("      q{0}.items[i] = Narrow<{1}>::of(z{0});", i, stored(result_dtype(i)));
      }
      line("    }}");
      for_results([&](std::size_t i, const std::string& place) {
        line("    store({} + at * {}, q{});", place, shape_.vector_size, i);
      });
    });
  }

  // The loop over a thread's vectors.
  template <class Body>
  void write_vector_loop(Body&& body) {
    line("#pragma unroll\n  for (int k = 0; k < {}; ++k) {{", shape_.vectors);
    line("    const int at = k * {} + threadIdx.x;", kPointwiseThreads);
    line("    if (at >= vectors) continue;");
    body();
    line("  }}");
  }

  void write_rest() {
    if (shape_.vector_size == 1) return;  // no remainder
    line("#pragma unroll 1");
    line("  for (int i = vectors * {} + threadIdx.x; i < left; i += {}) {{", shape_.vector_size,
         kPointwiseThreads);
    write_call("    ", [&](std::size_t i) {
      return form_.scalar[i] ? fmt::format("s{}", i) : fmt::format("widen(x{}[i])", i);
    });
    for_results([&](std::size_t i, const std::string& place) {
      line("    {}[i] = Narrow<{}>::of(z{});", place, stored(result_dtype(i)), i);
    });
    line("  }}");
  }

  const PointwiseForm& form_;
  std::span<const DType> inputs_;
  std::vector<DType> results_;
  PointwiseShape shape_;
  std::string text_;
};

}  // namespace

PointwiseSource pointwise_source(const PointwiseForm& form, std::span<const DType> inputs,
                                 bool one_element) {
  return SourceWriter(form, inputs, one_element).write();
}

}  // namespace lockstep
