// State: the memory of variables on one device. Executors of several plans share it, and with it
// the arena in which they compute (rank_memory.h).
#pragma once

#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/exec/rank_memory.h"
#include "lockstep/graph/graph.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// A copy on the host of some rows of a variable, as they are in its memory. Made quickly; its value
// can be read later, by any thread.
struct VariableImage {
  DType dtype = DType::F32;
  Shape shape;  // of the whole variable
  Layout layout;
  std::int64_t begin = 0;  // of the rows
  std::int64_t rows = 0;
  std::shared_ptr<Buffer> memory;  // those rows or, where the layout is not row-major, all

  // The rows, row-major; they share the memory where that is row-major, too.
  Tensor value() const;
};

class State {
 public:
  State(Device& device, std::uint64_t seed) : State(std::make_shared<RankMemory>(device), seed) {}
  // Replaces another state of the same rank.
  State(std::shared_ptr<RankMemory> memory, std::uint64_t seed)
      : memory_(std::move(memory)), device_(&memory_->device()), seed_(seed) {}

  // Adds and initialises the variables of a graph that are missing, in the layouts that they have
  // in the graph. Those that one Update node names together are contiguous, and those that one
  // AllGather's results are assigned to (plan/slices_in_place.h); slots of a staged update are in
  // host memory that the device's streams reach. Of a Sharded(flat)
  // variable only this rank's slice is stored.
  void add(const Graph& graph);
  // The same where the graph is that of another rank, with the slices of this one.
  using SliceOf = std::function<Slice(const Node& variable)>;
  void add(const Graph& graph, const SliceOf& slices);
  void add(const VariableRef& variable, const Layout& layout = {});

  bool has(const Variable& variable) const { return slots_.contains(&variable); }
  const Layout& layout(const Variable& variable) const { return slot(variable).layout; }
  std::byte* data(const Variable& variable) const;
  // The allocation that it lies in. Blocks that touch are still two allocations, and a copy may not
  // span them.
  const Buffer& block(const Variable& variable) const { return *slot(variable).buffer; }
  // The value, row-major: a copy. UsageError if only a slice is stored here: the whole value is
  // gathered from the slices of all ranks.
  Tensor get(const Variable& variable) const;
  // Takes the whole value; a rank that has a slice keeps only that. UsageError, naming the
  // variable, if dtype or shape differ.
  void set(const Variable& variable, const Tensor& value);
  // The elements, in row-major order, that are stored here: all, or this rank's slice; and their
  // values, in one dimension.
  const Slice& slice(const Variable& variable) const { return slot(variable).slice; }
  bool is_sharded(const Variable& variable) const { return slot(variable).sharded; }
  Tensor get_slice(const Variable& variable) const;

  // Whether variables that are stored whole are contiguous here, in this order.
  bool is_contiguous(std::span<const VariableRef> variables) const;

  std::vector<VariableRef> variables() const { return order_; }
  std::size_t bytes() const;
  std::size_t bytes(const Variable& variable) const;  // of one, in its layout
  // Copies rows of a variable that has some and is whole here. The image's memory is used again
  // where it has the size; nobody may be using it.
  void copy_rows(const Variable& variable, std::int64_t begin, std::int64_t rows,
                 VariableImage& image) const;
  // A copy of its memory as it is, including padding.
  std::vector<std::byte> image(const Variable& variable) const;
  Device& device() const { return *device_; }
  const std::shared_ptr<RankMemory>& memory() const { return memory_; }
  // What is allocated on the device for this rank: its variables, the arena of its plans, and the
  // memory of each plan (inputs and outputs or their staging buffers, constants).
  std::size_t resident_bytes() const { return memory_->resident_bytes(); }

 private:
  struct Slot {
    VariableRef variable;
    Layout layout;
    std::shared_ptr<Buffer> buffer;
    std::size_t offset = 0;
    Slice slice;  // elements that are stored here
    bool sharded = false;

    std::size_t bytes() const;
  };
  const Slot& slot(const Variable& variable) const;
  // Contiguous, in the device's memory or the host's; buffer and offset are still to be chosen.
  enum class Memory { Device, Host };
  void add_together(std::vector<Slot> slots, Memory where = Memory::Device);
  static Slot slot_of(const Graph& graph, const Node& node, const Slice& slice);

  std::shared_ptr<RankMemory> memory_;
  Device* device_;
  std::uint64_t seed_;
  std::unordered_map<const Variable*, Slot> slots_;
  std::vector<VariableRef> order_;
};

}  // namespace lockstep
