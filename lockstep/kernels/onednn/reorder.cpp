// Changes of layout by oneDNN's reorders.
#include <numeric>

#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {
namespace {

struct Ends {
  dnnl::memory::desc from, to;
};

// The descriptors of both sides, with an order of axes for which oneDNN knows the layouts: that of
// images, of filters, or the value's own. Nothing if there is none.
std::optional<Ends> ends_of(const KernelCall& call) {
  Axes own(static_cast<std::size_t>(call.in_shape(0).rank()));
  std::iota(own.begin(), own.end(), 0);
  std::vector<Axes> views = {own};
  if (own.size() == 4) views = {kImageAxes, kFilterAxes, own};
  for (const Axes& axes : views) {
    const auto from = to_desc(call.input(0), axes);
    const auto to = to_desc(call.output(0), axes);
    if (from && to) return Ends{*from, *to};
  }
  return {};
}

bool supports(const KernelCall& call) {
  const DType dtype = call.in_dtype(0);
  return call.in_shape(0).elements() > 0 && call.in_shape(0).rank() > 0 &&
         (dtype == DType::F32 || dtype == DType::U8 || dtype == DType::I32) && ends_of(call);
}

dnnl::reorder::primitive_desc describe(const KernelCall& call) {
  const Ends ends = *ends_of(call);
  return dnnl::reorder::primitive_desc(engine(), ends.from, engine(), ends.to, user_scratchpad());
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  const auto desc = describe(call);
  return std::make_unique<PrimitiveKernel>(
      dnnl::reorder(desc),
      std::vector<PrimitiveKernel::Argument>{{DNNL_ARG_FROM, desc.src_desc(), false, 0},
                                             {DNNL_ARG_TO, desc.dst_desc(), true, 0}},
      desc.scratchpad_desc());
}

std::size_t workspace(const KernelCall& call) {
  return describe(call).scratchpad_desc().get_size();
}

}  // namespace

void add_reorder(KernelLibrary& library) {
  library.add(
      Op::Reorder,
      {.name = "onednn.reorder", .supports = supports, .make = make, .workspace_bytes = workspace});
}

}  // namespace lockstep::onednn
