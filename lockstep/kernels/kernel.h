// Kernel: how a node is computed on a device. Made at planning, bound to memory once, then run
// every step; running allocates nothing and creates nothing.
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

namespace lockstep {

// What a kernel of a device that runs behind the host found wrong in the data (a label out of
// range): written by it, the value first, and read by the update, and by the executor at the end.
struct Fault {
  std::int64_t value = 0;
  std::int64_t step = 0;  // of the binding; 0: nothing is wrong
};

// Where a node's values lie. Outputs may share memory with the inputs that its OpDef allows.
struct Binding {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  std::byte* workspace = nullptr;
  Fault* fault = nullptr;  // where such a kernel says so; the device reaches it
  std::int64_t step = 0;   // and what it writes there

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

// What the kernels of a library share: handles of other libraries on one device, say.
class KernelContext {
 public:
  virtual ~KernelContext() = default;
  // What a user should know of the kernels made so far: what is slow, and why.
  virtual std::vector<std::string> remarks() const { return {}; }
};

// What a kernel is made from: one node of a finished graph, its layouts decided.
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
  // Whether every input and output lies row-major.
  bool row_major() const;
};

// One way to compute an op. Any of the functions but `make` may be absent.
struct KernelDef {
  std::string_view name;  // "onednn.matmul"
  // Whether it can compute this node. Absent: every node of its op, row-major.
  bool (*supports)(const KernelCall& call) = nullptr;
  std::unique_ptr<Kernel> (*make)(const KernelCall& call) = nullptr;
  std::size_t (*workspace_bytes)(const KernelCall& call) = nullptr;
  // The layouts it would like; absent: row-major.
  NodeLayouts (*layouts)(const KernelCall& call) = nullptr;
  bool (*fuses_activation)(const KernelCall& call, std::string_view activation) = nullptr;
  bool (*offers)(const KernelCall& call, std::string_view extra) = nullptr;
};

// How kernels are measured where a library chooses by it.
struct MeasuringOptions {
  int runs = 3;                              // of each kernel, behind a first; the fastest counts
  double most_seconds = 5.0;                 // in all; afterwards the first kernel is taken
  std::function<std::int64_t()> clock = {};  // in nanoseconds; none: the steady clock
};

// For each kind of node (op, attributes, types) the name of the kernel that computes it.
using KernelChoices = std::map<std::string, std::string>;

class MeasuredChoice;

// The kernels of a device kind: for each op an ordered list, of which the first that supports a
// node computes it, unless the library is told to measure.
class KernelLibrary final : public Backend {
 public:
  explicit KernelLibrary(std::unique_ptr<KernelContext> context = nullptr);
  ~KernelLibrary() override;
  KernelLibrary(KernelLibrary&&) noexcept;
  KernelLibrary& operator=(KernelLibrary&&) noexcept;

  void add(Op op, KernelDef def);  // behind those already there
  // The first kernel for a node; UsageError where there is none.
  const KernelDef& find(const KernelCall& call) const;
  // That kernel, made.
  std::unique_ptr<Kernel> make(const Graph& graph, const Node& node) const;
  // From now on what is made for an op goes through a function: for tests that look at what runs,
  // or disturb it.
  using Wrapper = std::function<std::unique_ptr<Kernel>(const KernelCall& call,
                                                        std::unique_ptr<Kernel> kernel)>;
  void wrap(Op op, Wrapper wrapper) { wrappers_[op] = std::move(wrapper); }
  KernelContext* context() const { return context_.get(); }
  std::vector<std::string> remarks() const {
    return context_ == nullptr ? std::vector<std::string>() : context_->remarks();
  }

  // From now on the fastest kernel computes a node, and runs differ in their last bits where
  // kernels do: see choice.h. `known` are choices of an earlier run, which are not measured again.
  void choose_by_measuring(MeasuringOptions options = {}, KernelChoices known = {});
  // What was chosen by measuring so far.
  KernelChoices choices() const;

  NodeLayouts layouts(const Graph& graph, const Node& node) const override;
  bool fuses_activation(const Graph& graph, const Node& node,
                        std::string_view activation) const override;
  bool offers(const Graph& graph, const Node& node, std::string_view extra) const override;
  // Where a kernel for such nodes is there besides the reference, which is slow.
  bool fuses_pointwise() const override;
  std::size_t workspace_bytes(const Graph& graph, const Node& node) const override;
  // By the kernels of cpu_kernels(), whatever device this library is for.
  std::vector<Tensor> evaluate(const Graph& graph, const Node& node) const override;

 private:
  const std::vector<KernelDef>& defs(Op op) const;

  std::unique_ptr<KernelContext> context_;
  std::vector<std::vector<KernelDef>> defs_;  // by op
  std::unique_ptr<MeasuredChoice> measured_;  // none: the first in order
  std::map<Op, Wrapper> wrappers_;
};

// A kernel whose work is a function of its binding, for those that keep nothing else.
using KernelFunction = std::function<void(const Binding&)>;
std::unique_ptr<Kernel> make_kernel(KernelFunction function);

// Plain C++ for every op, in f32, f64 and integers, and in 16-bit floats through f32: what the
// others are checked against.
void add_reference_kernels(KernelLibrary& library);
// 16-bit floats through the kernels of cpu_kernels() for f32.
void add_half_kernels(KernelLibrary& library);
// oneDNN for what is heavy, and our own vectorised kernels, in f32.
void add_onednn_kernels(KernelLibrary& library);

// What a CPU device runs: oneDNN's first, the reference for the rest.
KernelLibrary make_cpu_kernels();
// The same, made once and shared: its kernels are chosen by their order.
const KernelLibrary& cpu_kernels();
// The reference alone.
const KernelLibrary& reference_kernels();

struct CudaKernelOptions {
  // f32 products and convolutions on tensor cores, with ten bits of mantissa, as other frameworks
  // compute them by default; false: strict f32.
  bool allow_tf32 = true;
  // A file that keeps which algorithms of cuDNN and cuBLASLt were the fastest, by GPU and problem,
  // so that later runs start sooner and take the same ones. Empty: they are measured in every run.
  std::string plan_cache = {};
};

// What a CUDA device runs: cuDNN, cuBLASLt and our own kernels. UsageError, naming it, where a
// library that is needed cannot be loaded.
KernelLibrary make_cuda_kernels(Device& device, const CudaKernelOptions& options = {});

}  // namespace lockstep
