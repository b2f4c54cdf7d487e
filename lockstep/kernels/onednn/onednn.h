// What the oneDNN kernels share: the engine, layouts as memory descriptors, and a kernel that runs
// one primitive.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "lockstep/kernels/kernel.h"
#include "lockstep/kernels/onednn/api.h"

namespace lockstep::onednn {

dnnl::engine& engine();

// The families; each adds its kernels to the library.
void add_matmul(KernelLibrary& library);
void add_thin_conv(KernelLibrary& library);  // before add_conv
void add_conv(KernelLibrary& library);
void add_pool(KernelLibrary& library);
void add_norm(KernelLibrary& library);
void add_norm_inference(KernelLibrary& library);
void add_layer_norm(KernelLibrary& library);
void add_softmax(KernelLibrary& library);
void add_elementwise(KernelLibrary& library);
void add_reorder(KernelLibrary& library);

// How the axes of a value map to oneDNN's: axes[i] is the value's axis that is oneDNN's axis i.
using Axes = std::vector<int>;
inline const Axes kImageAxes = {0, 3, 1, 2};   // (N, H, W, C) seen as (N, C, H, W)
inline const Axes kFilterAxes = {3, 2, 0, 1};  // (kh, kw, I, O) seen as (O, I, kh, kw)

// The descriptor of an f32, u8 or i32 value as it lies; nothing where oneDNN has none for its
// layout.
std::optional<dnnl::memory::desc> to_desc(const ValueInfo& value, const Axes& axes);
// A descriptor whose layout is for oneDNN to choose.
dnnl::memory::desc any_desc(const ValueType& type, const Axes& axes);
// The layout that a descriptor describes; nothing where a Layout cannot say it.
std::optional<Layout> to_layout(const dnnl::memory::desc& desc, const Axes& axes);

// Runs one primitive. Arguments are named by oneDNN's numbers and come from the node's binding.
class PrimitiveKernel final : public Kernel {
 public:
  struct Argument {
    int name;  // DNNL_ARG_…
    dnnl::memory::desc desc;
    bool output;  // whether `index` counts the node's outputs or its inputs
    std::size_t index;
  };
  PrimitiveKernel(dnnl::primitive primitive, std::vector<Argument> arguments,
                  dnnl::memory::desc scratchpad);
  void bind(const Binding& binding) override;
  void run(Stream& stream) override;

 private:
  dnnl::primitive primitive_;
  std::vector<Argument> arguments_;
  dnnl::memory::desc scratchpad_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> list_;
  dnnl::stream stream_;
};

// Attributes with which a primitive takes its scratch memory from the plan.
dnnl::primitive_attr user_scratchpad();

// Whether a filter's gradient is one that thin_conv.cpp computes, once dy lies in blocks.
bool is_thin_conv(const KernelCall& call);

// Whether all of a node's floating inputs and outputs are f32 and it has elements to compute.
bool f32_and_not_empty(const KernelCall& call);

}  // namespace lockstep::onednn
