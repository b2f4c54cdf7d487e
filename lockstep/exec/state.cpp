#include "lockstep/exec/state.h"

#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/graph/ops/update.h"
#include "lockstep/plan/slices_in_place.h"

namespace lockstep {
namespace {

// Copies elements between row-major memory and a layout, in the direction of `Move`: move(row-major
// element, element in the layout).
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

Slice whole(const Variable& variable) {
  return {0, static_cast<std::size_t>(variable.shape.elements())};
}

Tensor row_major(DType dtype, const Shape& shape, const Layout& layout, const std::byte* source) {
  Tensor value(dtype, shape);
  const std::size_t size = size_of(dtype);
  walk(shape, layout, size, [&](std::size_t plain, std::size_t place) {
    std::memcpy(value.raw() + plain, source + place, size);
  });
  return value;
}

}  // namespace

Tensor VariableImage::value() const {
  if (layout.row_major()) return Tensor(dtype, shape.with(0, rows), memory, 0);
  return row_major(dtype, shape, layout, memory->data()).rows(begin, rows);
}

std::size_t State::Slot::bytes() const {
  const std::size_t elements =
      sharded ? slice.size() : static_cast<std::size_t>(layout.elements(variable->shape));
  return elements * size_of(variable->dtype);
}

State::Slot State::slot_of(const Graph& graph, const Node& node, const Slice& slice) {
  const ValueInfo& value = graph.info(node.outputs[0]);
  const bool sharded = node.attrs.has("begin");
  ensure(!sharded || value.layout.row_major(), "a slice of {} lies in layout '{}'", node.name,
         value.layout.str());
  return {.variable = node.variable,
          .layout = value.layout,
          .buffer = {},
          .offset = 0,
          .slice = slice,
          .sharded = sharded};
}

void State::add(const Graph& graph) {
  add(graph, slice_of_variable);
}

void State::add(const Graph& graph, const SliceOf& slices) {
  // What is gathered in place, and the lists of every Update, first, so that each is contiguous;
  // then the rest.
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::AllGather) continue;
    std::vector<Slot> slots;
    for (ValueId id : gathered_variables(graph, node)) {
      const Node& variable = graph.producer(id);
      if (!has(*variable.variable)) slots.push_back(slot_of(graph, variable, slices(variable)));
    }
    if (!slots.empty()) add_together(std::move(slots));
  }
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Update) continue;
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    for (std::size_t list = 3; list < node.inputs.size(); list += count) {
      if (list == 3 + count) continue;                   // the gradients
      if (list == 3 && !node.outputs.empty()) continue;  // slices of parameters, which are values
      std::vector<Slot> slots;
      for (std::size_t i = list; i < list + count; ++i) {
        const Node& producer = graph.producer(node.inputs[i]);
        ensure(producer.op == Op::Variable, "an update names {}, which is no variable",
               producer.name);
        if (!has(*producer.variable)) slots.push_back(slot_of(graph, producer, slices(producer)));
      }
      const bool staged = list > 3 + count && node.attrs.has(kStaged);
      add_together(std::move(slots), staged ? Memory::Host : Memory::Device);
    }
  }
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Variable) continue;
    const Slice wanted = slices(node);
    if (!has(*node.variable)) add_together({slot_of(graph, node, wanted)});
    const Slice& here = slice(*node.variable);
    ensure(here == wanted,
           "variable {} has its elements {} to {} here, but the plan wants {} to {}", node.name,
           here.begin, here.end, wanted.begin, wanted.end);
  }
}

void State::add(const VariableRef& variable, const Layout& layout) {
  if (has(*variable)) return;
  add_together({{.variable = variable,
                 .layout = layout,
                 .buffer = {},
                 .offset = 0,
                 .slice = whole(*variable),
                 .sharded = false}});
}

void State::add_together(std::vector<Slot> slots, Memory where) {
  std::size_t bytes = 0;
  for (const Slot& slot : slots) bytes += slot.bytes();
  const bool on_host = where == Memory::Host && !device_->shares_host_memory();
  const std::shared_ptr<Buffer> buffer =
      on_host ? device_->allocate_host(bytes) : memory_->allocate_persistent(bytes);
  expect_memory_to_run("[variables] " + device_->name());  // initializers use all cores
  std::size_t offset = 0;
  for (Slot& slot : slots) {
    const VariableRef variable = slot.variable;
    slot.buffer = buffer;
    slot.offset = offset;
    offset += slot.bytes();
    slots_[variable.get()] = std::move(slot);
    order_.push_back(variable);
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

bool State::is_contiguous(std::span<const VariableRef> variables) const {
  const std::byte* end = nullptr;
  for (const VariableRef& variable : variables) {
    if (is_sharded(*variable) || (end != nullptr && data(*variable) != end)) return false;
    end = data(*variable) + bytes(*variable);
  }
  return true;
}

// Through host memory, in the variable's layout.
Tensor State::get(const Variable& variable) const {
  require(!is_sharded(variable),
          "[state] of variable {} only elements {} to {} of {} are on {}: gather it from all ranks",
          variable.name, slice(variable).begin, slice(variable).end, variable.shape.elements(),
          device_->name());
  const Layout& placed = layout(variable);
  if (placed.row_major()) {
    Tensor value(variable.dtype, variable.shape);
    device_->copy(value.raw(), data(variable), value.bytes());
    return value;
  }
  return row_major(variable.dtype, variable.shape, placed, image(variable).data());
}

void State::copy_rows(const Variable& variable, std::int64_t begin, std::int64_t rows,
                      VariableImage& image) const {
  const Slot& found = slot(variable);
  ensure(!found.sharded && variable.shape.rank() > 0, "the rows of {} are not here", variable.name);
  image.dtype = variable.dtype;
  image.shape = variable.shape;
  image.layout = found.layout;
  image.begin = begin;
  image.rows = rows;
  std::size_t bytes = found.bytes();
  const std::byte* from = data(variable);
  if (found.layout.row_major()) {
    const std::size_t row = bytes / static_cast<std::size_t>(variable.shape[0]);
    from += static_cast<std::size_t>(begin) * row;
    bytes = static_cast<std::size_t>(rows) * row;
  }
  const bool direct = device_->shares_host_memory();
  if (image.memory == nullptr || image.memory->bytes() != bytes) {
    image.memory = direct ? host().allocate_unset(bytes) : device_->allocate_host(bytes);
  }
  std::byte* const to = image.memory->data();
  if (!direct) return device_->copy(to, from, bytes);
  constexpr std::int64_t kGrain = 1 << 20;
  parallel_for(static_cast<std::int64_t>(bytes), kGrain, [&](std::int64_t first, std::int64_t end) {
    std::memcpy(to + first, from + first, static_cast<std::size_t>(end - first));
  });
}

void State::set(const Variable& variable, const Tensor& value) {
  require(value.dtype() == variable.dtype && value.shape() == variable.shape,
          "[state] variable {} is {} {} and cannot take {} {}", variable.name,
          name_of(variable.dtype), variable.shape, name_of(value.dtype()), value.shape());
  const Layout& placed = layout(variable);
  if (placed.row_major()) {
    const std::size_t size = size_of(variable.dtype);
    const Slice& here = slice(variable);
    device_->copy(data(variable), value.raw() + here.begin * size, here.size() * size);
    return;
  }
  std::vector<std::byte> target = image(variable);
  const std::size_t size = size_of(variable.dtype);
  walk(variable.shape, placed, size, [&](std::size_t plain, std::size_t place) {
    std::memcpy(target.data() + place, value.raw() + plain, size);
  });
  device_->copy(data(variable), target.data(), target.size());
}

Tensor State::get_slice(const Variable& variable) const {
  const Slice& here = slice(variable);
  const auto elements = static_cast<std::int64_t>(here.size());
  if (!is_sharded(variable)) return get(variable).reshaped({elements});
  Tensor value(variable.dtype, {elements});
  device_->copy(value.raw(), data(variable), value.bytes());
  return value;
}

std::vector<std::byte> State::image(const Variable& variable) const {
  std::vector<std::byte> bytes(slot(variable).bytes());
  device_->copy(bytes.data(), data(variable), bytes.size());
  return bytes;
}

std::size_t State::bytes(const Variable& variable) const {
  return slot(variable).bytes();
}

std::size_t State::bytes() const {
  std::size_t bytes = 0;
  for (const auto& [variable, found] : slots_) bytes += found.bytes();
  return bytes;
}

}  // namespace lockstep
