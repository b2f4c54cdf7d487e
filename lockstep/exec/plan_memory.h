// PlanMemory: where the values of a plan are stored on its device: in the arena that all plans of
// the rank share, the state's variables, constants, inputs and outputs.
//
// On devices that share the host's memory, inputs and outputs have memory of their own, which stays
// where it is when the arena moves. On other devices the plan owns the host's sides of them and the
// staging buffers of inputs; what the device computes with is at the end of the arena, and inputs
// are copied there again after another plan has run.
#pragma once

#include <map>
#include <memory>

#include "lockstep/exec/state.h"
#include "lockstep/plan/plan.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// How much of a device's memory a plan needs. Plans of one rank share variables and arena; the rest
// belongs to each plan.
struct PlanBytes {
  std::size_t variables = 0;
  std::size_t arena = 0;
  std::size_t input_output = 0;  // or staging buffers of inputs
  std::size_t constants = 0;

  std::size_t total() const { return variables + arena + input_output + constants; }
};
PlanBytes bytes_on(const Device& device, const Plan& plan);

class PlanMemory {
 public:
  // Allocates all of it. UsageError if the device has too little memory for the plan, saying what
  // is needed, what is free and what to change.
  PlanMemory(const Plan& plan, State& state);

  // Call before every run. True if the arena has moved: all addresses are new then, and nothing
  // that was issued is still in flight.
  bool follow_arena();
  // Makes this plan the user of the arena. True if another plan was, or none: the inputs on the
  // device are then lost.
  bool enter_arena() const { return rank_->enter_arena(this); }

  // Leaves the arena without a user.
  void leave_arena() const { rank_->enter_arena(nullptr); }

  RankMemory& rank() const { return *rank_; }
  const State& state() const { return state_; }

  // Zeroed device memory that is counted as the rank's.
  std::shared_ptr<Buffer> allocate(std::size_t bytes) const { return rank_->allocate(bytes); }

  std::byte* address(ValueId id) const;
  std::byte* workspace(const Instruction& instruction) const;
  std::byte* staging(const Instruction& instruction) const;

  // The host's side of an input or output, which never moves: on a CPU device the memory itself.
  Tensor host_view(ValueId id) const;

  // An input or output with two sides, and the staging buffers between them.
  struct Input {
    std::byte* host = nullptr;
    std::byte* staging = nullptr;  // on the device, while the previous step still reads its inputs
    std::byte* device = nullptr;
    std::size_t bytes = 0;
    ValueId id = -1;
  };
  struct Output {
    std::byte* device = nullptr;
    std::byte* staging[2] = {nullptr, nullptr};  // on the host, for runs in turns
    std::byte* host = nullptr;
    std::size_t bytes = 0;
    ValueId id = -1;
  };
  const std::vector<Input>& inputs() const { return inputs_; }  // in the graph's order
  const std::vector<Output>& outputs() const { return outputs_; }

 private:
  const Node& leaf(ValueId id) const;
  void expect_room() const;
  void mirror_inputs();
  void mirror_outputs();
  void upload_constants();
  std::byte* add(std::shared_ptr<Buffer> buffer);
  void find_device_sides();

  const Plan& plan_;
  State& state_;
  std::shared_ptr<RankMemory> rank_;
  PlanBytes bytes_;
  std::uint64_t generation_ = 0;                  // of the arena that addresses refer to
  std::shared_ptr<Buffer> input_output_;          // where the host can read it
  std::vector<std::shared_ptr<Buffer>> buffers_;  // all others
  std::map<ValueId, Tensor> host_sides_;          // of inputs and outputs
  std::map<const Node*, std::byte*> constants_;   // on a device with its own memory
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
};

}  // namespace lockstep
