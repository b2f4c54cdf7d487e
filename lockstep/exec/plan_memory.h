// PlanMemory: where the values of a plan lie on its device: one arena, the state's variables,
// constants; and, where the host cannot read the device's memory, the host's side of inputs and
// outputs.
#pragma once

#include <map>
#include <memory>

#include "lockstep/exec/state.h"
#include "lockstep/plan/plan.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class PlanMemory {
 public:
  // Allocates it all. UsageError where the device has too little memory for the plan, with what is
  // needed, what is free and what to change.
  PlanMemory(const Plan& plan, State& state);

  std::byte* address(ValueId id) const;
  std::byte* workspace(const PlanStep& step) const;

  // The host's side of an input or output: on a CPU device the memory itself.
  Tensor host_view(ValueId id) const;

  // An input or output with two sides, and the way between them.
  struct Input {
    std::byte* host = nullptr;
    std::byte* landing = nullptr;  // on the device, while the step before still reads its own
    std::byte* device = nullptr;
    std::size_t bytes = 0;
  };
  struct Output {
    std::byte* device = nullptr;
    std::byte* landing[2] = {nullptr, nullptr};  // on the host, for runs in turns
    std::byte* host = nullptr;
    std::size_t bytes = 0;
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

  const Plan& plan_;
  State& state_;
  std::shared_ptr<Buffer> arena_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // all others
  std::map<ValueId, Tensor> host_sides_;          // of inputs and outputs
  std::map<const Node*, std::byte*> constants_;   // on a device of its own memory
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
};

}  // namespace lockstep
