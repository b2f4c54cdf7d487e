// Collectives on a rank that is alone. Where there are several, the executor runs its
// communicator's collectives in place of these kernels, in the workspace that they ask for; slices
// of replicated values are cut here in any case.
#include "lockstep/graph/ops/collective.h"

#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

// The values as they are.
std::unique_ptr<Kernel> make_same(const KernelCall& call) {
  std::vector<std::size_t> bytes;
  for (ValueId id : call.node.outputs) bytes.push_back(call.graph.bytes(id));
  return make_kernel([bytes](const Binding& binding) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == 0 || binding.inputs[i] == binding.outputs[i]) continue;
      std::memcpy(binding.outputs[i], binding.inputs[i], bytes[i]);
    }
  });
}

std::unique_ptr<Kernel> make_own_slice(const KernelCall& call) {
  std::vector<ValueType> types;
  for (ValueId id : call.node.inputs) types.push_back(call.graph.type(id));
  const std::vector<Slice> slices = slices_of(types, rank_in_group(call.node.attrs));
  const std::size_t size = size_of(types[0].dtype);
  return make_kernel([slices, size](const Binding& binding) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      if (slices[i].size() == 0) continue;
      const std::byte* from = binding.inputs[i] + slices[i].begin * size;
      if (from != binding.outputs[i])
        std::memcpy(binding.outputs[i], from, slices[i].size() * size);
    }
  });
}

void expect_alone(const KernelCall& call) {
  const RankInGroup here = rank_in_group(call.node.attrs);
  ensure(here.size == 1, "[{}] {}: rank {} of {} has no communicator", op_def(call.node.op).name,
         call.node.name, here.rank, here.size);
}

std::unique_ptr<Kernel> make_alone(const KernelCall& call) {
  expect_alone(call);
  return make_same(call);
}

std::size_t bytes_of(const Graph& graph, const std::vector<ValueId>& ids) {
  std::size_t bytes = 0;
  for (ValueId id : ids) bytes += graph.bytes(id);
  return bytes;
}

std::size_t bytes_read(const KernelCall& call) {
  return bytes_of(call.graph, call.node.inputs);
}

std::size_t bytes_written(const KernelCall& call) {
  return bytes_of(call.graph, call.node.outputs);
}

bool any_layout(const KernelCall&) {
  return true;
}

}  // namespace

void add_reference_collective(KernelLibrary& library) {
  library.add(Op::AllReduce,
              {.name = "reference.all_reduce", .supports = any_layout, .make = make_same});
  library.add(Op::Broadcast,
              {.name = "reference.broadcast", .supports = any_layout, .make = make_same});
  library.add(
      Op::ReduceScatter,
      {.name = "reference.reduce_scatter", .make = make_alone, .workspace_bytes = bytes_read});
  library.add(
      Op::AllGather,
      {.name = "reference.all_gather", .make = make_alone, .workspace_bytes = bytes_written});
  library.add(Op::OwnSlice, {.name = "reference.own_slice", .make = make_own_slice});
}

}  // namespace lockstep
