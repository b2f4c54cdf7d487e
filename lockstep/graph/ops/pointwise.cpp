#include "lockstep/graph/ops/pointwise.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

const std::map<std::string, Op, std::less<>>& elementwise_names() {
  static const auto names = [] {
    std::map<std::string, Op, std::less<>> result;
    for (const OpDef& def : elementwise_ops()) result.emplace(def.name, def.op);
    return result;
  }();
  return names;
}

template <class T>
T number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ensure(error == std::errc() && end == text.data() + text.size(),
         "[pointwise] '{}' is not a number", text);
  return value;
}

// The text before and after the first such character; all of it and nothing if there is none.
std::pair<std::string_view, std::string_view> cut(std::string_view text, char at) {
  const std::size_t place = text.find(at);
  if (place == std::string_view::npos) return {text, {}};
  return {text.substr(0, place), text.substr(place + 1)};
}

std::string print_literal(const PointwiseOperand& operand) {
  const std::string_view name = name_of(operand.dtype);
  if (operand.dtype == DType::F64) return fmt::format("{}:{}", operand.real, name);
  if (is_floating(operand.dtype)) {
    return fmt::format("{}:{}", static_cast<float>(operand.real), name);
  }
  return fmt::format("{}:{}", operand.integer, name);
}

PointwiseOperand parse_operand(std::string_view text) {
  PointwiseOperand operand;
  if (text.starts_with('$') || text.starts_with('%')) {
    operand.kind = text[0] == '$' ? PointwiseOperand::Kind::Input : PointwiseOperand::Kind::Result;
    operand.index = number<int>(text.substr(1));
    return operand;
  }
  const auto [value, dtype] = cut(text, ':');
  operand.kind = PointwiseOperand::Kind::Literal;
  operand.dtype = dtype_named(dtype);
  if (operand.dtype == DType::F64) {
    operand.real = number<double>(value);
  } else if (is_floating(operand.dtype)) {
    operand.real = number<float>(value);
  } else {
    operand.integer = number<std::int64_t>(value);
  }
  return operand;
}

std::string print_operand(const PointwiseOperand& operand) {
  switch (operand.kind) {
    case PointwiseOperand::Kind::Input:
      return fmt::format("${}", operand.index);
    case PointwiseOperand::Kind::Result:
      return fmt::format("%{}", operand.index);
    default:
      return print_literal(operand);
  }
}

// "relu", "leaky_relu:0.1", "bf16": an op's attributes.
std::string print_detail(const PointwiseInstruction& instruction) {
  const Attrs& attrs = instruction.attrs;
  if (instruction.op == Op::Cast) return "." + attrs.text("dtype");
  if (!attrs.has("kind")) return "";
  const std::string& kind = attrs.text("kind");
  if (kind != "leaky_relu") return "." + kind;
  return fmt::format(".{}:{}", kind, attrs.real("alpha"));
}

Attrs parse_detail(Op op, std::string_view detail) {
  if (op == Op::Cast) return {{"dtype", std::string(detail)}};
  if (op != Op::Activation && op != Op::ActivationGrad) return {};
  const auto [kind, alpha] = cut(detail, ':');
  return {{"kind", std::string(kind)}, {"alpha", alpha.empty() ? 0.2 : number<double>(alpha)}};
}

PointwiseInstruction parse_instruction(std::string_view text) {
  auto [head, rest] = cut(text, ' ');
  const auto [name, detail] = cut(head, '.');
  const auto op = elementwise_names().find(name);
  ensure(op != elementwise_names().end(), "[pointwise] '{}' is not an elementwise op", name);
  PointwiseInstruction instruction{op->second, parse_detail(op->second, detail), {}};
  while (!rest.empty()) {
    const auto [operand, remaining] = cut(rest, ' ');
    instruction.operands.push_back(parse_operand(operand));
    rest = remaining;
  }
  return instruction;
}

std::vector<ValueType> infer_pointwise(const OpCall& call) {
  const PointwiseForm form = read_pointwise(call.attrs, call.inputs.size());
  const std::vector<DType> inputs = form.input_dtypes(call.inputs);
  const std::vector<DType> results = result_dtypes(form.program, inputs);
  std::vector<ValueType> outputs;
  for (std::size_t segment = 0; segment < form.count; ++segment) {
    const Shape shape = form.shape(call.inputs, segment);
    for (std::size_t i = 0; i < form.operands; ++i) {
      const ValueType& type = call.inputs[segment * form.operands + i];
      require(type.dtype == inputs[i], "operand {} of segment {} is {}, not {}", i, segment,
              type.str(), name_of(inputs[i]));
      require(type.shape.elements() == (form.scalar[i] ? 1 : shape.elements()),
              "operand {} of segment {} is {}, but the segment is {}", i, segment, type.str(),
              shape);
    }
    for (std::size_t i = 0; i < form.results.size(); ++i) {
      require(form.results[i] >= 0 && form.results[i] < std::ssize(form.program),
              "there is no instruction {}", form.results[i]);
      const ValueType type{results[static_cast<std::size_t>(form.results[i])], shape};
      if (form.targets[i] < 0) {
        outputs.push_back(type);
        continue;
      }
      const ValueType& variable = call.inputs[form.input(segment, form.targets[i])];
      require(variable == type, "a variable is {} and cannot take the value {}", variable.str(),
              type.str());
    }
  }
  return outputs;
}

// An instruction counts as one operation; inputs are read once, and kept results are written once.
Cost cost_pointwise(const OpCall& call, std::span<const ValueType> outputs) {
  const PointwiseForm form = read_pointwise(call.attrs, call.inputs.size());
  Cost cost{0, bytes_moved(call, outputs)};
  for (std::size_t segment = 0; segment < form.count; ++segment) {
    const auto elements = static_cast<double>(form.shape(call.inputs, segment).elements());
    cost.flops += elements * static_cast<double>(form.program.size());
    for (const std::int64_t target : form.targets) {
      if (target < 0) continue;
      const DType dtype = call.dtype(form.input(segment, target));
      cost.bytes += elements * static_cast<double>(size_of(dtype));
    }
  }
  return cost;
}

// An element is read before any of its results is written, so an output may share memory with any
// input of its segment that is not a scalar.
std::vector<std::pair<int, int>> in_place_pointwise(const OpCall& call) {
  const PointwiseForm form = read_pointwise(call.attrs, call.inputs.size());
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t segment = 0; segment < form.count; ++segment) {
    for (std::size_t i = 0; i < form.operands; ++i) {
      if (form.scalar[i]) continue;
      for (std::size_t o = 0; o < form.outputs(); ++o) {
        pairs.emplace_back(static_cast<int>(segment * form.operands + i),
                           static_cast<int>(segment * form.outputs() + o));
      }
    }
  }
  return pairs;
}

}  // namespace

bool is_elementwise(Op op) {
  static const auto all = [] {
    std::vector<Op> ops;
    for (const auto& [name, each] : elementwise_names()) ops.push_back(each);
    std::ranges::sort(ops);
    return ops;
  }();
  return std::ranges::binary_search(all, op);
}

PointwiseOperand literal_of(const Tensor& constant) {
  PointwiseOperand operand;
  operand.kind = PointwiseOperand::Kind::Literal;
  operand.dtype = constant.dtype();
  dispatch(constant.dtype(), [&](auto zero) {
    const auto value = constant.values<decltype(zero)>()[0];
    if constexpr (!std::is_integral_v<decltype(zero)>) {
      operand.real = value;
    } else {
      operand.integer = static_cast<std::int64_t>(value);
    }
  });
  return operand;
}

std::string print(const PointwiseProgram& program) {
  std::string text;
  for (const PointwiseInstruction& instruction : program) {
    text += text.empty() ? "" : "; ";
    text += op_def(instruction.op).name;
    text += print_detail(instruction);
    for (const PointwiseOperand& operand : instruction.operands)
      text += " " + print_operand(operand);
  }
  return text;
}

PointwiseProgram parse_pointwise(std::string_view text) {
  PointwiseProgram program;
  while (!text.empty()) {
    const auto [instruction, rest] = cut(text, ';');
    program.push_back(parse_instruction(instruction));
    text = rest.starts_with(' ') ? rest.substr(1) : rest;
  }
  return program;
}

std::vector<DType> result_dtypes(const PointwiseProgram& program, std::span<const DType> inputs) {
  std::vector<DType> results;
  const auto dtype_of = [&](const PointwiseOperand& operand) {
    if (operand.kind == PointwiseOperand::Kind::Literal) return operand.dtype;
    const bool input = operand.kind == PointwiseOperand::Kind::Input;
    const std::span<const DType> known = input ? inputs : std::span<const DType>(results);
    require(operand.index >= 0 && operand.index < std::ssize(known),
            "instruction {} reads {}, but there are only {}", results.size(),
            print_operand(operand), known.size());
    return known[static_cast<std::size_t>(operand.index)];
  };
  for (const PointwiseInstruction& instruction : program) {
    std::vector<ValueType> types;
    for (const PointwiseOperand& operand : instruction.operands) {
      types.push_back({dtype_of(operand), Shape()});
    }
    results.push_back(op_def(instruction.op).infer({types, instruction.attrs})[0].dtype);
  }
  return results;
}

std::size_t PointwiseForm::outputs() const {
  return static_cast<std::size_t>(std::ranges::count(targets, -1));
}

Shape PointwiseForm::shape(std::span<const ValueType> inputs, std::size_t segment) const {
  Shape shape;
  for (const ValueType& type : inputs.subspan(segment * operands, operands)) {
    shape = broadcast(shape, type.shape);
  }
  return shape;
}

std::vector<DType> PointwiseForm::input_dtypes(std::span<const ValueType> inputs) const {
  std::vector<DType> dtypes;
  for (const ValueType& type : inputs.first(operands)) dtypes.push_back(type.dtype);
  return dtypes;
}

PointwiseForm read_pointwise(const Attrs& attrs, std::size_t inputs) {
  PointwiseForm form;
  form.program = parse_pointwise(attrs.text("program"));
  form.count = static_cast<std::size_t>(attrs.integer("count"));
  ensure(form.count > 0 && inputs % form.count == 0, "[pointwise] {} inputs in {} segments", inputs,
         form.count);
  form.operands = inputs / form.count;
  form.scalar.resize(form.operands);
  for (const std::int64_t operand : attrs.ints("scalars")) {
    form.scalar.at(static_cast<std::size_t>(operand)) = true;
  }
  form.results = attrs.ints("results");
  form.targets = attrs.has("targets") ? attrs.ints("targets") : Ints(form.results.size(), -1);
  ensure(form.targets.size() == form.results.size(), "[pointwise] {} targets for {} results",
         form.targets.size(), form.results.size());
  for (const std::int64_t target : form.targets) {
    ensure(target < std::ssize(form.scalar), "[pointwise] there is no operand {}", target);
  }
  return form;
}

Attrs pointwise_attrs(const PointwiseForm& form) {
  Ints scalars;
  for (std::size_t i = 0; i < form.scalar.size(); ++i) {
    if (form.scalar[i]) scalars.push_back(static_cast<std::int64_t>(i));
  }
  Attrs attrs{{"program", print(form.program)},
              {"count", static_cast<std::int64_t>(form.count)},
              {"scalars", scalars},
              {"results", form.results}};
  if (std::ranges::any_of(form.targets, [](std::int64_t target) { return target >= 0; })) {
    attrs.set("targets", form.targets);
  }
  return attrs;
}

std::vector<OpDef> pointwise_ops() {
  return {{.op = Op::Pointwise,
           .name = "pointwise",
           .infer = infer_pointwise,
           .cost = cost_pointwise,
           .find_in_place = in_place_pointwise},
          {.op = Op::PointwiseAssign,
           .name = "pointwise_assign",
           .infer = infer_pointwise,
           .cost = cost_pointwise,
           .effect = true}};
}

}  // namespace lockstep
