#include "lockstep/exec/state.h"

#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/memory.h"

namespace lockstep {
namespace {

// Copies elements between row-major memory and a layout, in the direction that `Move` says:
// move(row-major element, element in the layout).
template <class Move>
void walk(const Shape& shape, const Layout& layout, std::size_t size, Move&& move) {
  if (shape.elements() == 0) return;
  const std::vector<std::vector<std::int64_t>> table = layout.offsets(shape);
  const auto rank = static_cast<std::size_t>(shape.rank());
  std::vector<std::size_t> index(rank, 0);
  for (std::size_t plain = 0;; ++plain) {
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < rank; ++axis) place += table[axis][index[axis]];
    move(plain * size, static_cast<std::size_t>(place) * size);
    std::size_t axis = rank;
    while (axis > 0 && ++index[axis - 1] == table[axis - 1].size()) index[--axis] = 0;
    if (axis == 0) return;
  }
}

std::size_t bytes_of(const Variable& variable, const Layout& layout) {
  return static_cast<std::size_t>(layout.elements(variable.shape)) * size_of(variable.dtype);
}

}  // namespace

void State::add(const Graph& graph) {
  // The lists of every Update first, so that each lies side by side; then what is left.
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Update) continue;
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    for (std::size_t list = 3; list < node.inputs.size(); list += count) {
      if (list == 3 + count) continue;  // the gradients
      std::vector<VariableRef> variables;
      std::vector<Layout> layouts;
      for (std::size_t i = list; i < list + count; ++i) {
        const Node& producer = graph.producer(node.inputs[i]);
        ensure(producer.op == Op::Variable, "an update names {}, which is no variable",
               producer.name);
        if (has(*producer.variable)) continue;
        variables.push_back(producer.variable);
        layouts.push_back(graph.info(node.inputs[i]).layout);
      }
      add_together(variables, layouts);
    }
  }
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::Variable && !has(*node.variable)) {
      add(node.variable, graph.info(node.outputs[0]).layout);
    }
  }
}

void State::add(const VariableRef& variable, const Layout& layout) {
  if (!has(*variable)) add_together({&variable, 1}, {&layout, 1});
}

void State::add_together(std::span<const VariableRef> variables, std::span<const Layout> layouts) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < variables.size(); ++i) bytes += bytes_of(*variables[i], layouts[i]);
  const std::shared_ptr<Buffer> buffer = device_->allocate_lasting(bytes);
  expect_memory_to_run("[variables] " + device_->name());  // initializers use all cores
  std::size_t offset = 0;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const VariableRef& variable = variables[i];
    slots_[variable.get()] = {variable, layouts[i], buffer, offset};
    order_.push_back(variable);
    offset += bytes_of(*variable, layouts[i]);
    if (variable->initializer) {
      Tensor start(variable->dtype, variable->shape);
      variable->initializer(start, seed_);
      set(*variable, start);
    }
  }
}

const State::Slot& State::slot(const Variable& variable) const {
  const auto found = slots_.find(&variable);
  require(found != slots_.end(), "[state] there is no variable {} on {}", variable.name,
          device_->name());
  return found->second;
}

std::byte* State::data(const Variable& variable) const {
  const Slot& found = slot(variable);
  return found.buffer->data() + found.offset;
}

// Through memory of the host, in the variable's layout.
Tensor State::get(const Variable& variable) const {
  Tensor value(variable.dtype, variable.shape);
  const Layout& placed = layout(variable);
  if (placed.row_major()) {
    device_->copy(value.raw(), data(variable), value.bytes());
    return value;
  }
  const std::vector<std::byte> source = image(variable);
  const std::size_t size = size_of(variable.dtype);
  walk(variable.shape, placed, size, [&](std::size_t plain, std::size_t place) {
    std::memcpy(value.raw() + plain, source.data() + place, size);
  });
  return value;
}

void State::set(const Variable& variable, const Tensor& value) {
  require(value.dtype() == variable.dtype && value.shape() == variable.shape,
          "[state] variable {} is {} {} and cannot take {} {}", variable.name,
          name_of(variable.dtype), variable.shape, name_of(value.dtype()), value.shape());
  const Layout& placed = layout(variable);
  if (placed.row_major()) {
    device_->copy(data(variable), value.raw(), value.bytes());
    return;
  }
  std::vector<std::byte> target = image(variable);
  const std::size_t size = size_of(variable.dtype);
  walk(variable.shape, placed, size, [&](std::size_t plain, std::size_t place) {
    std::memcpy(target.data() + place, value.raw() + plain, size);
  });
  device_->copy(data(variable), target.data(), target.size());
}

std::vector<std::byte> State::image(const Variable& variable) const {
  std::vector<std::byte> bytes(bytes_of(variable, layout(variable)));
  device_->copy(bytes.data(), data(variable), bytes.size());
  return bytes;
}

std::size_t State::bytes(const Variable& variable) const {
  return bytes_of(variable, slot(variable).layout);
}

std::size_t State::bytes() const {
  std::size_t bytes = 0;
  for (const auto& [variable, found] : slots_) bytes += bytes_of(*variable, found.layout);
  return bytes;
}

}  // namespace lockstep
