// Pointwise nodes, interpreted: a program runs over tiles of elements, one instruction after the
// other, each a separate loop over the registers of a tile. The generated kernels of other devices
// are checked against it; graphs for a CPU contain no such nodes.
//
// A tile is read before any of it is written, so results may overwrite operands. 16-bit floats are
// f32 in registers and rounded when they are cast or stored.
#include <algorithm>
#include <functional>

#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/kernels/activations.h"
#include "lockstep/kernels/reference/functions.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTile = 128;

// The elements of a tile, of any dtype.
struct Register {
  alignas(8) std::byte bytes[kTile * 8];
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes);
  }
};

// Calls f with a value of the type in which a dtype is computed.
template <class F>
decltype(auto) dispatch_computed(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F64:
      return f(double{});
    case DType::I32:
      return f(std::int32_t{});
    case DType::I64:
      return f(std::int64_t{});
    case DType::U8:
      return f(std::uint8_t{});
    case DType::Bool:
      return f(bool{});
    default:
      return f(float{});
  }
}

using Registers = std::vector<Register>;
// Executes an instruction on the registers, for so many elements.
using TileFunction = std::function<void(Registers&, std::int64_t)>;

// The registers of an instruction: its operands', then its result's.
using Places = std::vector<std::size_t>;

template <class T, class F>
TileFunction one_operand(const Places& places, F f) {
  return [x = places[0], y = places[1], f](Registers& registers, std::int64_t n) {
    using R = decltype(f(T{}));
    const T* from = registers[x].as<T>();
    R* to = registers[y].as<R>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = f(from[i]);
  };
}

template <class T, class F>
TileFunction two_operands(const Places& places, F f) {
  return [a = places[0], b = places[1], y = places[2], f](Registers& registers, std::int64_t n) {
    using R = decltype(f(T{}, T{}));
    const T* left = registers[a].as<T>();
    const T* right = registers[b].as<T>();
    R* to = registers[y].as<R>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = f(left[i], right[i]);
  };
}

// One maker per set of dtypes that an op accepts.

template <class F>
TileFunction numbers(DType dtype, const Places& places, F f) {
  return dispatch_computed(dtype, [&](auto zero) -> TileFunction {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      fail<InternalError>("[pointwise] there is no arithmetic on bool");
    } else if constexpr (std::is_invocable_v<F, T>) {
      return one_operand<T>(places, f);
    } else {
      return two_operands<T>(places, f);
    }
  });
}

template <class F>
TileFunction floats(DType dtype, const Places& places, F f) {
  const auto make = [&](auto zero) -> TileFunction {
    using T = decltype(zero);
    if constexpr (std::is_invocable_v<F, T>) {
      return one_operand<T>(places, f);
    } else {
      return two_operands<T>(places, f);
    }
  };
  return dtype == DType::F64 ? make(double{}) : make(float{});
}

template <class F>
TileFunction comparison(DType dtype, const Places& places, F f) {
  return dispatch_computed(dtype,
                           [&](auto zero) { return two_operands<decltype(zero)>(places, f); });
}

TileFunction activation(const Attrs& attrs, DType dtype, const Places& places) {
  return with_activation<StandardMath>(attrs.text("kind"), attrs.real("alpha"), [&](auto kind) {
    return floats(dtype, places, [kind](auto x) { return kind.value(x); });
  });
}

TileFunction activation_grad(const Attrs& attrs, DType dtype, const Places& places) {
  return with_activation<StandardMath>(attrs.text("kind"), attrs.real("alpha"), [&](auto kind) {
    return floats(dtype, places, [kind](auto dy, auto x) { return kind.grad(dy, x); });
  });
}

TileFunction cast(DType from, DType to, const Places& places) {
  return dispatch_computed(from, [&](auto source) {
    return dispatch(to, [&](auto target) {
      using To = decltype(target);
      using Computed = std::conditional_t<is_small_float_v<To>, float, To>;
      return one_operand<decltype(source)>(
          places, [](auto x) { return static_cast<Computed>(convert<To>(x)); });
    });
  });
}

TileFunction select(DType dtype, const Places& places) {
  return dispatch_computed(dtype, [&](auto zero) -> TileFunction {
    using T = decltype(zero);
    return [places](Registers& registers, std::int64_t n) {
      const bool* condition = registers[places[0]].as<bool>();
      const T* a = registers[places[1]].as<T>();
      const T* b = registers[places[2]].as<T>();
      T* to = registers[places[3]].as<T>();
      for (std::int64_t i = 0; i < n; ++i) to[i] = condition[i] ? a[i] : b[i];
    };
  });
}

// `dtype` is operand 0's.
TileFunction tile_function(const PointwiseInstruction& instruction, DType dtype, DType result,
                           const Places& places) {
  switch (instruction.op) {
    case Op::Add:
      return numbers(dtype, places, Plus());
    case Op::Sub:
      return numbers(dtype, places, Minus());
    case Op::Mul:
      return numbers(dtype, places, Times());
    case Op::Div:
      return floats(dtype, places, Over());
    case Op::Pow:
      return floats(dtype, places, Power());
    case Op::Maximum:
      return numbers(dtype, places, Larger());
    case Op::Minimum:
      return numbers(dtype, places, Smaller());
    case Op::Equal:
      return comparison(dtype, places, IsEqual());
    case Op::NotEqual:
      return comparison(dtype, places, IsNotEqual());
    case Op::Less:
      return comparison(dtype, places, IsLess());
    case Op::LessEqual:
      return comparison(dtype, places, IsLessEqual());
    case Op::Greater:
      return comparison(dtype, places, IsGreater());
    case Op::GreaterEqual:
      return comparison(dtype, places, IsGreaterEqual());
    case Op::LogicalAnd:
      return two_operands<bool>(places, Both());
    case Op::LogicalOr:
      return two_operands<bool>(places, Any());
    case Op::LogicalNot:
      return one_operand<bool>(places, Not());
    case Op::Neg:
      return numbers(dtype, places, Negative());
    case Op::Abs:
      return numbers(dtype, places, Absolute());
    case Op::Sign:
      return numbers(dtype, places, Sign());
    case Op::Exp:
      return floats(dtype, places, Exponential());
    case Op::Log:
      return floats(dtype, places, Logarithm());
    case Op::Sqrt:
      return floats(dtype, places, SquareRoot());
    case Op::Rsqrt:
      return floats(dtype, places, ReciprocalRoot());
    case Op::Square:
      return numbers(dtype, places, Squared());
    case Op::Activation:
      return activation(instruction.attrs, dtype, places);
    case Op::ActivationGrad:
      return activation_grad(instruction.attrs, dtype, places);
    case Op::Cast:
      return cast(dtype, result, places);
    case Op::Select:
      return select(result, places);
    default:
      fail<InternalError>("[pointwise] {} is not elementwise", op_def(instruction.op).name);
  }
}

class PointwiseKernel final : public Kernel {
 public:
  explicit PointwiseKernel(const KernelCall& call)
      : form_(read_pointwise(call.attrs(), call.in_count())) {
    std::vector<ValueType> types;
    for (ValueId id : call.node.inputs) types.push_back(call.graph.type(id));
    for (std::size_t segment = 0; segment < form_.count; ++segment) {
      elements_.push_back(form_.shape(types, segment).elements());
    }
    inputs_ = form_.input_dtypes(types);
    results_ = result_dtypes(form_.program, inputs_);
    // The first registers hold operands, the next ones results, the last ones literals.
    registers_.resize(form_.operands + form_.program.size());
    for (std::size_t i = 0; i < form_.program.size(); ++i) add_instruction(i);
  }

  void bind(const Binding& binding) override { binding_ = binding; }

  void run(Stream&) override {
    for (std::size_t segment = 0; segment < form_.count; ++segment) {
      for (std::int64_t at = 0; at < elements_[segment]; at += kTile) {
        const std::int64_t n = std::min(kTile, elements_[segment] - at);
        load(segment, at, n);
        for (const TileFunction& function : functions_) function(registers_, n);
        store(segment, at, n);
      }
    }
  }

 private:
  void add_instruction(std::size_t i) {
    const PointwiseInstruction& instruction = form_.program[i];
    Places places;
    DType dtype = DType::F32;
    for (std::size_t o = 0; o < instruction.operands.size(); ++o) {
      const PointwiseOperand& operand = instruction.operands[o];
      const auto index = static_cast<std::size_t>(operand.index);
      const bool input = operand.kind == PointwiseOperand::Kind::Input;
      const bool literal = operand.kind == PointwiseOperand::Kind::Literal;
      if (o == 0) dtype = literal ? operand.dtype : input ? inputs_[index] : results_[index];
      places.push_back(literal ? add_literal(operand) : input ? index : form_.operands + index);
    }
    places.push_back(form_.operands + i);
    functions_.push_back(tile_function(instruction, dtype, results_[i], places));
  }

  std::size_t add_literal(const PointwiseOperand& literal) {
    registers_.emplace_back();
    dispatch_computed(literal.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T value = std::is_floating_point_v<T> ? static_cast<T>(literal.real)
                                                  : static_cast<T>(literal.integer);
      std::fill_n(registers_.back().as<T>(), kTile, value);
    });
    return registers_.size() - 1;
  }

  void load(std::size_t segment, std::int64_t at, std::int64_t n) {
    for (std::size_t i = 0; i < form_.operands; ++i) {
      dispatch(inputs_[i], [&](auto zero) {
        using T = decltype(zero);
        using Computed = std::conditional_t<is_small_float_v<T>, float, T>;
        const T* from = binding_.in<T>(segment * form_.operands + i);
        Computed* to = registers_[i].as<Computed>();
        if (form_.scalar[i]) {
          std::fill_n(to, n, static_cast<Computed>(*from));
        } else {
          std::copy_n(from + at, n, to);
        }
      });
    }
  }

  void store(std::size_t segment, std::int64_t at, std::int64_t n) {
    std::size_t output = segment * form_.outputs();
    for (std::size_t i = 0; i < form_.results.size(); ++i) {
      const auto result = static_cast<std::size_t>(form_.results[i]);
      std::byte* place =
          form_.targets[i] < 0
              ? binding_.outputs[output++]
              : const_cast<std::byte*>(binding_.inputs[form_.input(segment, form_.targets[i])]);
      dispatch(results_[result], [&](auto zero) {
        using T = decltype(zero);
        using Computed = std::conditional_t<is_small_float_v<T>, float, T>;
        const Computed* from = registers_[form_.operands + result].as<Computed>();
        T* to = reinterpret_cast<T*>(place) + at;
        for (std::int64_t e = 0; e < n; ++e) to[e] = static_cast<T>(from[e]);
      });
    }
  }

  PointwiseForm form_;
  std::vector<std::int64_t> elements_;  // per segment
  std::vector<DType> inputs_;
  std::vector<DType> results_;
  std::vector<TileFunction> functions_;
  Registers registers_;
  Binding binding_;
};

std::unique_ptr<Kernel> make_pointwise(const KernelCall& call) {
  return std::make_unique<PointwiseKernel>(call);
}

}  // namespace

void add_reference_pointwise(KernelLibrary& library) {
  library.add(Op::Pointwise, {.name = "reference.pointwise", .make = make_pointwise});
  library.add(Op::PointwiseAssign, {.name = "reference.pointwise_assign", .make = make_pointwise});
}

}  // namespace lockstep
