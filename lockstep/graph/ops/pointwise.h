// Pointwise: several elementwise nodes as one, for a backend that compiles such a program to a
// kernel. A pass inserts it after differentiation; nobody writes one by hand.
//
// A program runs for each element of a segment independently: "mul $0 0.9:f32; add %0 $1"
// multiplies operand 0 by a number and adds operand 1. An instruction is an elementwise op with its
// operands: $2 is the element of input 2, %1 the result of instruction 1, and 0.5:f32 a number of
// that dtype. "activation.relu", "activation_grad.leaky_relu:0.1" and "cast.bf16" include their
// attributes.
//
// A node runs its program over `count` independent segments, each with its own shape and operands.
// The node's inputs are those of segment 0, then those of segment 1, …; likewise its outputs. The
// shape of a segment is what its operands broadcast to; each operand has that many elements, or is
// one of `scalars` and has one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

struct PointwiseOperand {
  enum class Kind { Input, Result, Literal };
  Kind kind = Kind::Input;
  int index = 0;  // of an input or an instruction
  // For a literal: its dtype, and the number as floating-point or as integer (bool: 0 or 1).
  DType dtype = DType::F32;
  double real = 0;
  std::int64_t integer = 0;
};

struct PointwiseInstruction {
  Op op = Op::Add;
  Attrs attrs = {};
  std::vector<PointwiseOperand> operands = {};
};

using PointwiseProgram = std::vector<PointwiseInstruction>;

// Whether an op is one of ops/elementwise.h, and may be part of a program.
bool is_elementwise(Op op);

// The literal for a constant with one element.
PointwiseOperand literal_of(const Tensor& constant);

// A program as text and back; InternalError if the text is not a program.
std::string print(const PointwiseProgram& program);
PointwiseProgram parse_pointwise(std::string_view text);

// The dtype of every instruction's result, by the shape rules of its op; `inputs` are the dtypes of
// a segment's inputs. UsageError if a rule rejects an instruction.
std::vector<DType> result_dtypes(const PointwiseProgram& program, std::span<const DType> inputs);

// A node's attributes, read once.
struct PointwiseForm {
  PointwiseProgram program = {};
  std::size_t count = 1;          // segments
  std::size_t operands = 0;       // inputs per segment
  std::vector<bool> scalar = {};  // per operand: whether it has one element for all
  Ints results = {};              // instructions whose results are kept
  Ints targets = {};  // per result: the operand, a variable, it is written to; -1: an output

  std::size_t outputs() const;  // per segment
  std::size_t input(std::size_t segment, std::int64_t operand) const {
    return segment * operands + static_cast<std::size_t>(operand);
  }
  // The shape of a segment, from the types of the node's inputs.
  Shape shape(std::span<const ValueType> inputs, std::size_t segment) const;
  // The dtypes of a segment's inputs, which are the same for all segments.
  std::vector<DType> input_dtypes(std::span<const ValueType> inputs) const;
};
PointwiseForm read_pointwise(const Attrs& attrs, std::size_t inputs);
// The reverse; sets targets only if one of them is a variable.
Attrs pointwise_attrs(const PointwiseForm& form);

}  // namespace lockstep
