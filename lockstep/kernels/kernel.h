// Kernel: how a node is computed on a device. Created while planning, bound to memory once, then
// run in every step; running allocates nothing and creates nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/graph/backend.h"
#include "lockstep/graph/graph.h"
#include "lockstep/kernels/cuda_options.h"

namespace lockstep {

// Bad data (a label out of range) found by a kernel of a device that runs asynchronously to the
// host. The kernel writes it, the value first; the update reads it, and the executor at the end.
struct Fault {
  std::int64_t value = 0;
  std::int64_t step = 0;  // Binding::step of the kernel; 0: nothing is wrong
};

// The memory of a node's values. Outputs may share memory with the inputs that its OpDef allows.
struct Binding {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  std::byte* workspace = nullptr;
  Fault* fault = nullptr;  // where the kernel reports bad data, in memory the device can write
  std::int64_t step = 0;   // the instruction's number in the plan, from 1: written to Fault::step

  template <class T>
  const T* in(std::size_t i) const {
    return reinterpret_cast<const T*>(inputs[i]);
  }
  template <class T>
  T* out(std::size_t i) const {
    return reinterpret_cast<T*>(outputs[i]);
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Called once, before the first run.
  virtual void bind(const Binding& binding) = 0;
  virtual void run(Stream& stream) = 0;
  // What a fault's value means: "label 12 is outside [0, 10)".
  virtual std::string explain(std::int64_t value) const {
    return fmt::format("bad value {}", value);
  }
};

// State shared by the kernels of a library, such as handles of other libraries on one device.
class KernelContext {
 public:
  virtual ~KernelContext() = default;
  // What a user should know about the kernels created so far: what is slow, and why.
  virtual std::vector<std::string> remarks() const { return {}; }
};

// What a kernel is created from: one node of a finished graph whose layouts are decided.
struct KernelCall {
  const Graph& graph;
  const Node& node;
  KernelContext* context = nullptr;  // the library's

  const ValueInfo& input(std::size_t i) const { return graph.info(node.inputs[i]); }
  const ValueInfo& output(std::size_t i) const { return graph.info(node.outputs[i]); }
  const Shape& in_shape(std::size_t i) const { return input(i).type.shape; }
  const Shape& out_shape(std::size_t i) const { return output(i).type.shape; }
  DType in_dtype(std::size_t i) const { return input(i).type.dtype; }
  std::size_t in_count() const { return node.inputs.size(); }
  const Attrs& attrs() const { return node.attrs; }
  // Whether every input and output is row-major.
  bool row_major() const;
};

// One way to compute an op. Every function except `make` is optional.
struct KernelDef {
  std::string_view name;  // "onednn.matmul"
  // Whether it can compute this node. Absent: every node of its op, row-major.
  bool (*supports)(const KernelCall& call) = nullptr;
  std::unique_ptr<Kernel> (*make)(const KernelCall& call) = nullptr;
  std::size_t (*workspace_bytes)(const KernelCall& call) = nullptr;
  // The layouts it prefers; absent: row-major.
  NodeLayouts (*layouts)(const KernelCall& call) = nullptr;
  bool (*fuses_activation)(const KernelCall& call, std::string_view activation) = nullptr;
  bool (*offers)(const KernelCall& call, std::string_view extra) = nullptr;
};

// How kernels are measured if a library chooses by measuring.
struct MeasuringOptions {
  int runs = 3;                              // per kernel, after a first one; the fastest counts
  double most_seconds = 5.0;                 // in total; afterwards the first kernel is taken
  std::function<std::int64_t()> clock = {};  // in nanoseconds; none: the steady clock
};

// The name of the kernel that computes each kind of node (op, attributes, types).
using KernelChoices = std::map<std::string, std::string>;

class MeasuredChoice;

// The kernels of a device kind: an ordered list for each op. The first one that supports a node
// computes it, unless the library is told to measure.
class KernelLibrary final : public Backend {
 public:
  explicit KernelLibrary(std::unique_ptr<KernelContext> context = nullptr);
  ~KernelLibrary() override;
  KernelLibrary(KernelLibrary&&) noexcept;
  KernelLibrary& operator=(KernelLibrary&&) noexcept;

  void add(Op op, KernelDef def);  // at the end of the op's list
  // The kernel for a node; UsageError if there is none.
  const KernelDef& find(const KernelCall& call) const;
  // Creates that kernel.
  std::unique_ptr<Kernel> make(const Graph& graph, const Node& node) const;
  // From now on every kernel created for an op passes through a function: for tests that observe
  // what runs, or disturb it.
  using Wrapper = std::function<std::unique_ptr<Kernel>(const KernelCall& call,
                                                        std::unique_ptr<Kernel> kernel)>;
  void wrap(Op op, Wrapper wrapper) { wrappers_[op] = std::move(wrapper); }
  KernelContext* context() const { return context_.get(); }
  std::vector<std::string> remarks() const {
    return context_ == nullptr ? std::vector<std::string>() : context_->remarks();
  }

  // From now on the fastest kernel computes a node, so runs may differ in their last bits: see
  // choice.h. `known` holds the choices of an earlier run, which are not measured again.
  void choose_by_measuring(MeasuringOptions options = {}, KernelChoices known = {});
  // The choices measured so far.
  KernelChoices choices() const;

  NodeLayouts layouts(const Graph& graph, const Node& node) const override;
  bool fuses_activation(const Graph& graph, const Node& node,
                        std::string_view activation) const override;
  bool offers(const Graph& graph, const Node& node, std::string_view extra) const override;
  // True if there is a kernel for pointwise nodes other than the reference, which is slow.
  bool fuses_pointwise() const override;
  std::size_t workspace_bytes(const Graph& graph, const Node& node) const override;
  // Uses cpu_kernels(), whatever device this library is for.
  std::vector<Tensor> evaluate(const Graph& graph, const Node& node) const override;

 private:
  const std::vector<KernelDef>& defs(Op op) const;

  std::unique_ptr<KernelContext> context_;
  std::vector<std::vector<KernelDef>> defs_;  // by op
  std::unique_ptr<MeasuredChoice> measured_;  // null: the first in order
  std::map<Op, Wrapper> wrappers_;
};

// A stateless kernel: a function of its binding.
using KernelFunction = std::function<void(const Binding&)>;
std::unique_ptr<Kernel> make_kernel(KernelFunction function);

// Plain C++ for every op, in f32, f64 and integers, and in 16-bit floats through f32. The other
// kernels are checked against these.
void add_reference_kernels(KernelLibrary& library);
// 16-bit floats, converted and computed by the f32 kernels of cpu_kernels().
void add_half_kernels(KernelLibrary& library);
// oneDNN for the heavy ops, and our own vectorised kernels, in f32.
void add_onednn_kernels(KernelLibrary& library);

// The kernels of a CPU device: oneDNN's first, the reference for the rest.
KernelLibrary make_cpu_kernels();
// The same, created once and shared; the first kernel in order is taken.
const KernelLibrary& cpu_kernels();
// Only the reference kernels.
const KernelLibrary& reference_kernels();

// What a CUDA device runs: cuDNN, cuBLASLt and our own kernels. UsageError, naming it, where a
// library that is needed cannot be loaded.
KernelLibrary make_cuda_kernels(Device& device, const CudaKernelOptions& options = {});

}  // namespace lockstep
