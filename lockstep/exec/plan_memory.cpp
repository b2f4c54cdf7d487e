#include "lockstep/exec/plan_memory.h"

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {

PlanBytes bytes_on(const Device& device, const Plan& plan) {
  PlanBytes bytes{.variables = plan.variable_bytes,
                  .arena = plan.arena_bytes,
                  .input_output = plan.input_output_bytes,
                  .constants = plan.constant_bytes};
  if (device.shares_host_memory()) return bytes;
  bytes.arena += plan.input_output_bytes;
  bytes.input_output = 0;
  for (const auto& [name, id] : plan.graph.inputs()) bytes.input_output += plan.graph.bytes(id);
  return bytes;
}

PlanMemory::PlanMemory(const Plan& plan, State& state)
    : plan_(plan), state_(state), rank_(state.memory()), bytes_(bytes_on(state.device(), plan)) {
  Device& device = state_.device();
  if (names_cuda(device.name())) expect_room();
  if (device.shares_host_memory()) {
    input_output_ = rank_->allocate_persistent(plan_.input_output_bytes);
  } else {
    upload_constants();
    mirror_inputs();
    mirror_outputs();
  }
  follow_arena();
}

bool PlanMemory::follow_arena() {
  rank_->reserve_arena(bytes_.arena);
  if (generation_ == rank_->arena_generation()) return false;
  generation_ = rank_->arena_generation();
  find_device_sides();
  return true;
}

void PlanMemory::find_device_sides() {
  for (Input& input : inputs_) input.device = address(input.id);
  for (Output& output : outputs_) output.device = address(output.id);
}

void PlanMemory::expect_room() const {
  const Device& device = state_.device();
  std::size_t needed = bytes_.constants + bytes_.input_output;
  std::size_t free = free_gpu_bytes(device);
  if (bytes_.arena > rank_->arena_bytes()) {
    needed += bytes_.arena;
    free += rank_->arena_bytes();
  }
  constexpr double kMiB = 1024.0 * 1024.0;
  if (needed <= free) return;
  fail<MemoryError>(
      "[plan] a step needs {:.0f} MiB on {} beside its {:.0f} MiB of variables, and {:.0f} MiB "
      "are free: use a smaller batch, 16-bit precision, or recomputation",
      static_cast<double>(needed) / kMiB, device.name(),
      static_cast<double>(plan_.variable_bytes) / kMiB, static_cast<double>(free) / kMiB);
}

std::byte* PlanMemory::add(std::shared_ptr<Buffer> buffer) {
  buffers_.push_back(std::move(buffer));
  return buffers_.back()->data();
}

void PlanMemory::upload_constants() {
  for (const Node& node : plan_.graph.nodes()) {
    if (node.op != Op::Constant) continue;
    std::byte* const to = add(rank_->allocate(node.constant.bytes()));
    state_.device().copy(to, node.constant.raw(), node.constant.bytes());
    constants_[&node] = to;
  }
}

void PlanMemory::mirror_inputs() {
  Device& device = state_.device();
  for (const auto& [name, id] : plan_.graph.inputs()) {
    const std::size_t bytes = plan_.graph.bytes(id);
    const ValueType& type = plan_.graph.type(id);
    const std::shared_ptr<Buffer> host_side = device.allocate_host(bytes);
    host_sides_[id] = Tensor(type.dtype, type.shape, host_side, 0);
    inputs_.push_back({.host = host_side->data(),
                       .staging = add(rank_->allocate(bytes)),
                       .bytes = bytes,
                       .id = id});
  }
}

void PlanMemory::mirror_outputs() {
  Device& device = state_.device();
  for (const auto& [name, id] : plan_.graph.outputs()) {
    if (host_sides_.contains(id)) continue;
    if (plan_.values[static_cast<std::size_t>(id)].place != Place::InputOutput) continue;
    const std::size_t bytes = plan_.graph.bytes(id);
    const ValueType& type = plan_.graph.type(id);
    const std::shared_ptr<Buffer> host_side = device.allocate_host(bytes);
    host_sides_[id] = Tensor(type.dtype, type.shape, host_side, 0);
    outputs_.push_back(
        {.staging = {add(device.allocate_host(bytes)), add(device.allocate_host(bytes))},
         .host = host_side->data(),
         .bytes = bytes,
         .id = id});
  }
}

std::byte* PlanMemory::address(ValueId id) const {
  const Allocation& allocation = plan_.values[static_cast<std::size_t>(id)];
  if (allocation.place == Place::Arena) return rank_->arena() + allocation.offset;
  if (allocation.place == Place::InputOutput) {
    return input_output_ != nullptr ? input_output_->data() + allocation.offset
                                    : rank_->arena() + plan_.arena_bytes + allocation.offset;
  }
  const Node& node = leaf(id);
  if (node.op == Op::Variable) return state_.data(*node.variable) + allocation.offset;
  const auto uploaded = constants_.find(&node);
  if (uploaded != constants_.end()) return uploaded->second;
  return const_cast<std::byte*>(node.constant.raw());  // never written: constants are inputs only
}

std::byte* PlanMemory::workspace(const Instruction& instruction) const {
  return instruction.workspace_bytes > 0 ? rank_->arena() + instruction.workspace_offset : nullptr;
}

std::byte* PlanMemory::staging(const Instruction& instruction) const {
  return instruction.staging_bytes > 0 ? rank_->arena() + instruction.staging_offset : nullptr;
}

// The variable or constant whose memory a value outside the arena refers to.
const Node& PlanMemory::leaf(ValueId id) const {
  return plan_.graph.producer(plan_.values[static_cast<std::size_t>(id)].of);
}

Tensor PlanMemory::host_view(ValueId id) const {
  const auto mirrored = host_sides_.find(id);
  if (mirrored != host_sides_.end()) return mirrored->second;
  const Allocation& allocation = plan_.values[static_cast<std::size_t>(id)];
  const ValueType& type = plan_.graph.type(id);
  if (allocation.place == Place::InputOutput) {
    return Tensor(type.dtype, type.shape, input_output_, allocation.offset);
  }
  const Node& node = leaf(id);
  const Tensor value = node.op == Op::Variable ? state_.get(*node.variable) : node.constant;
  return value.reshaped(type.shape);
}

}  // namespace lockstep
