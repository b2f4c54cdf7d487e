#include "lockstep/exec/runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

// Whether everything a node reads comes from the compute stream.
bool reads_compute_alone(const Plan& plan, const Node& node) {
  return std::ranges::none_of(node.inputs, [&](ValueId id) {
    NodeId from = plan.graph.info(id).producer;
    while (op_def(plan.graph.node(from).op).view) {
      from = plan.graph.info(plan.graph.node(from).inputs[0]).producer;
    }
    return std::ranges::any_of(plan.instructions, [&](const Instruction& instruction) {
      return instruction.stream == kCommunicationStream && instruction.node == from;
    });
  });
}

// A round in the workspace of an instruction; its results are then copied to where the plan has
// them.
class InWorkspace final : public Collective {
 public:
  InWorkspace(std::unique_ptr<Collective> round, std::vector<Stream::Copy> results)
      : round_(std::move(round)), results_(std::move(results)) {}

  void start() override {
    brought_ = false;
    round_->start();
  }
  bool poll() override {
    if (!round_->poll()) return false;
    bring();
    return true;
  }
  void await_ranks() override { round_->await_ranks(); }
  void finish() override {
    round_->finish();
    bring();
  }
  void issue(Stream& stream) override {
    round_->issue(stream);
    stream.copy_all(results_);
  }

 private:
  void bring() {
    if (std::exchange(brought_, true)) return;
    for (const Stream::Copy& copy : results_) std::memcpy(copy.to, copy.from, copy.bytes);
  }

  std::unique_ptr<Collective> round_;
  std::vector<Stream::Copy> results_;
  bool brought_ = false;
};

// One collective for each contiguous range of results: a single one, as the plan lays them out.
void bind_in_place(BoundInstruction& bound, const Plan& plan, const Node& node,
                   const PlanMemory& memory, Communicator& comm) {
  const DType dtype = plan.graph.type(node.outputs[0]).dtype;
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  const auto close = [&] {
    if (begin == end) return;
    const std::span<std::byte> data{begin, static_cast<std::size_t>(end - begin)};
    bound.collectives.push_back(
        node.op == Op::Broadcast
            ? comm.broadcast(data, static_cast<int>(node.attrs.integer("root")))
            : comm.all_reduce(data, dtype));
  };
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    std::byte* const to = memory.address(node.outputs[i]);
    const std::byte* const from = memory.address(node.inputs[i]);
    const std::size_t bytes = plan.graph.bytes(node.outputs[i]);
    if (bytes == 0) continue;
    if (from != to) bound.copies.push_back({to, from, bytes});
    if (to != end) {
      close();
      begin = to;
    }
    end = to + bytes;
  }
  close();
}

// The whole list is in the workspace: a reduce_scatter copies its inputs there and its slices from
// there; an all_gather copies its slices there and its results from there. Without a workspace the
// inputs or results are one block themselves, as the plan lays them out.
void bind_in_workspace(BoundInstruction& bound, const Plan& plan, const Node& node,
                       const PlanMemory& memory, std::byte* workspace, Communicator& comm) {
  const RankInGroup here = rank_in_group(node.attrs);
  ensure(here.rank == comm.rank() && here.size == comm.size(),
         "[{}] {}: written for rank {} of {}, run by rank {} of {}", op_def(node.op).name,
         node.name, here.rank, here.size, comm.rank(), comm.size());
  const bool scatters = node.op == Op::ReduceScatter;
  const std::vector<ValueId>& whole = scatters ? node.inputs : node.outputs;
  const std::vector<ValueId>& sliced = scatters ? node.outputs : node.inputs;
  std::vector<ValueType> types;
  for (ValueId id : whole) types.push_back(plan.graph.type(id));
  const std::vector<Slice> slices = slices_of(types, here);
  const DType dtype = types[0].dtype;
  if (workspace == nullptr) {
    workspace = memory.address(whole.front());
    const std::byte* end = workspace;
    for (ValueId id : whole) {
      ensure(memory.address(id) == end, "[{}] {}: its values are not contiguous",
             op_def(node.op).name, node.name);
      end += plan.graph.bytes(id);
    }
  }
  std::vector<Stream::Copy> wholes;
  std::vector<Stream::Copy> own;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const std::size_t begin = bytes + slices[i].begin * size_of(dtype);
    wholes.push_back({workspace + bytes, memory.address(whole[i]), plan.graph.bytes(whole[i])});
    own.push_back({workspace + begin, memory.address(sliced[i]), plan.graph.bytes(sliced[i])});
    bytes += plan.graph.bytes(whole[i]);
  }
  std::erase_if(wholes,
                [](const Stream::Copy& copy) { return copy.bytes == 0 || copy.from == copy.to; });
  std::erase_if(own,
                [](const Stream::Copy& copy) { return copy.bytes == 0 || copy.from == copy.to; });
  std::vector<Stream::Copy> results;
  for (const Stream::Copy& in : scatters ? own : wholes) {
    results.push_back({const_cast<std::byte*>(in.from), in.to, in.bytes});
  }
  bound.copies = scatters ? wholes : own;
  if (bytes == 0) return;
  const std::span<std::byte> data{workspace, bytes};
  bound.collectives.push_back(std::make_unique<InWorkspace>(
      scatters ? comm.reduce_scatter(data, dtype) : comm.all_gather(data, dtype),
      std::move(results)));
}

void bind_collectives(BoundInstruction& bound, const Plan& plan, const Node& node,
                      const PlanMemory& memory, std::byte* workspace, Communicator& comm) {
  if (node.op == Op::ReduceScatter || node.op == Op::AllGather) {
    bind_in_workspace(bound, plan, node, memory, workspace, comm);
  } else {
    bind_in_place(bound, plan, node, memory, comm);
  }
  bound.starts_early = reads_compute_alone(plan, node);
}

// An update changes slices of parameters, which are its outputs, in place.
void expect_in_place(const Plan& plan, const Node& node, const PlanMemory& memory) {
  if (node.op != Op::Update) return;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    ensure(memory.address(node.outputs[i]) == memory.address(node.inputs[3 + i]),
           "[update] slice {} of {} is not updated where it lies", i,
           plan.graph.type(node.outputs[i]).str());
  }
}

// Those of neighbours are one.
void add_copy(std::vector<Stream::Copy>& copies, const Stream::Copy& next, bool same_block) {
  if (same_block && !copies.empty()) {
    Stream::Copy& last = copies.back();
    if (last.to + last.bytes == next.to && last.from + last.bytes == next.from) {
      last.bytes += next.bytes;
      return;
    }
  }
  copies.push_back(next);
}

// Makes an update work on its slots, which are its last inputs, where they are copied to.
void stage(BoundInstruction& bound, Binding& binding, const Plan& plan, const Node& node,
           const State& state, std::byte* to) {
  const std::size_t slots = staged_slots(node).size();
  const Buffer* block = nullptr;
  for (std::size_t i = node.inputs.size() - slots; i < node.inputs.size(); ++i) {
    const std::size_t bytes = plan.graph.bytes(node.inputs[i]);
    auto* const from = const_cast<std::byte*>(binding.inputs[i]);
    const Buffer& next = state.block(*plan.graph.producer(node.inputs[i]).variable);
    add_copy(bound.fetches, {to, from, bytes}, block == &next);
    add_copy(bound.stores, {from, to, bytes}, block == &next);
    block = &next;
    binding.inputs[i] = to;
    to += bytes;
  }
}

}  // namespace

std::string span_name(const Node& node) {
  return fmt::format("{}{}{}", op_def(node.op).name, node.name.empty() ? "" : " ", node.name);
}

std::vector<BoundInstruction> bind_instructions(const Plan& plan, const KernelLibrary& library,
                                                const PlanMemory& memory,
                                                const ExecutorOptions& options, Fault* fault) {
  const bool alone = options.compute_comm == nullptr && options.gradient_comm == nullptr;
  std::vector<BoundInstruction> all;
  for (const Instruction& instruction : plan.instructions) {
    const Node& node = plan.graph.node(instruction.node);
    BoundInstruction bound;
    for (int awaited : instruction.waits) bound.waits_for = std::max(bound.waits_for, awaited);
    bound.communication = instruction.stream == kCommunicationStream;
    if (options.recorder != nullptr) {
      bound.name = options.recorder->intern(span_name(node));
    }
    Communicator* comm = bound.communication ? options.gradient_comm : options.compute_comm;
    if (is_collective(node) && comm != nullptr) {
      bind_collectives(bound, plan, node, memory, memory.workspace(instruction), *comm);
    } else {
      expect_in_place(plan, node, memory);
      Binding binding;
      for (ValueId id : node.inputs) binding.inputs.push_back(memory.address(id));
      for (ValueId id : node.outputs) binding.outputs.push_back(memory.address(id));
      if (instruction.staging_bytes > 0)
        stage(bound, binding, plan, node, memory.state(), memory.staging(instruction));
      binding.workspace = memory.workspace(instruction);
      // With other replicas, the update runs even after a fault, so that all replicas stay
      // identical.
      binding.fault = node.op == Op::Update && !alone ? nullptr : fault;
      binding.step = static_cast<std::int64_t>(all.size()) + 1;
      bound.kernel = library.make(plan.graph, node);
      bound.kernel->bind(binding);
    }
    all.push_back(std::move(bound));
  }
  return all;
}

void fail_at(const Plan& plan, std::size_t instruction, const std::string& what) {
  const Node& node = plan.graph.node(plan.instructions[instruction].node);
  fail<DataError>("[{}] {}: {}", op_def(node.op).name, node.name, what);
}

}  // namespace lockstep
