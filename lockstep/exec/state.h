// State: the memory of variables on one device. Executors of several plans share it.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/graph/graph.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class State {
 public:
  State(Device& device, std::uint64_t seed) : device_(&device), seed_(seed) {}

  // Adds and initialises the variables of a graph that are not there yet, in the layouts that they
  // have in the graph. Those that one Update node names together lie side by side, without gaps.
  void add(const Graph& graph);
  void add(const VariableRef& variable, const Layout& layout = {});

  bool has(const Variable& variable) const { return slots_.contains(&variable); }
  const Layout& layout(const Variable& variable) const { return slot(variable).layout; }
  std::byte* data(const Variable& variable) const;
  // The value, row-major: a copy.
  Tensor get(const Variable& variable) const;
  // UsageError, naming the variable, where dtype or shape are not its own.
  void set(const Variable& variable, const Tensor& value);

  std::vector<VariableRef> variables() const { return order_; }
  std::size_t bytes() const;
  std::size_t bytes(const Variable& variable) const;  // of one, in its layout
  // A copy of its memory as it lies, padding included.
  std::vector<std::byte> image(const Variable& variable) const;
  Device& device() const { return *device_; }

 private:
  struct Slot {
    VariableRef variable;
    Layout layout;
    std::shared_ptr<Buffer> buffer;
    std::size_t offset = 0;
  };
  const Slot& slot(const Variable& variable) const;
  void add_together(std::span<const VariableRef> variables, std::span<const Layout> layouts);

  Device* device_;
  std::uint64_t seed_;
  std::unordered_map<const Variable*, Slot> slots_;
  std::vector<VariableRef> order_;
};

}  // namespace lockstep
