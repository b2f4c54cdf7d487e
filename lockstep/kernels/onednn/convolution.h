// A convolution in oneDNN's terms, and which of oneDNN's implementations computes it.
//
// oneDNN has several implementations for most shapes, in its own order. By default its first direct
// one is used; the others are there for a library that chooses by measuring (choice.h), because
// Winograd's algorithm (on AVX-512) rounds differently, and the direct ones differ among
// themselves. For gradients of one channel, for example, the GEMM-based one is three times as fast
// on AVX2.
#pragma once

#include <string>
#include <utility>

#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {

// Which of oneDNN's implementations: the first, second or third direct one, not counting those that
// are slow on every machine; or Winograd's.
enum class Way { First, Second, Third, Winograd };

// What all three nodes of a convolution share, in oneDNN's terms. A primitive's descriptor is empty
// if oneDNN has no such implementation; Way::First always exists.
struct Convolution {
  ValueType image;
  ValueType filter;
  ValueType result;
  Way way;
  bool biased = false;
  std::int64_t groups = 1;
  dnnl::memory::dims strides, dilates, before, after;
  dnnl::primitive_attr attributes = user_scratchpad();

  Convolution(const KernelCall& call, Way way_, ValueType x, ValueType w, ValueType y)
      : image(std::move(x)), filter(std::move(w)), result(std::move(y)), way(way_) {
    groups = call.attrs().integer("groups");
    const Ints& s = call.attrs().ints("strides");
    const Ints& d = call.attrs().ints("dilations");
    const Ints& p = call.attrs().ints("padding");
    strides = {s[0], s[1]};
    dilates = {d[0] - 1, d[1] - 1};
    before = {p[0], p[2]};
    after = {p[1], p[3]};
  }

  bool grouped() const { return groups > 1; }

  dnnl::memory::dims filter_dims() const {
    const Shape& f = filter.shape;
    if (!grouped()) return {f[3], f[2], f[0], f[1]};
    return {groups, f[3] / groups, f[2], f[0], f[1]};
  }
  dnnl::memory::desc any_filter() const {
    return {filter_dims(), dnnl::memory::data_type::f32, dnnl::memory::format_tag::any};
  }
  // The row-major filter: (kh, kw, I, O).
  dnnl::memory::desc plain_filter() const {
    const Shape& f = filter.shape;
    const std::int64_t o = f[3];
    const std::int64_t i = f[2] * o;
    if (!grouped()) return {filter_dims(), dnnl::memory::data_type::f32, {1, o, f[1] * i, i}};
    return {filter_dims(), dnnl::memory::data_type::f32, {o / groups, 1, o, f[1] * i, i}};
  }
  dnnl::memory::desc bias() const {
    return biased ? dnnl::memory::desc({filter.shape[3]}, dnnl::memory::data_type::f32,
                                       dnnl::memory::format_tag::a)
                  : dnnl::memory::desc();
  }

  dnnl::convolution_forward::primitive_desc forward(const dnnl::memory::desc& x,
                                                    const dnnl::memory::desc& w,
                                                    const dnnl::memory::desc& y) const {
    return describe_forward(spec(), x, w, bias(), y);
  }
  dnnl::convolution_backward_data::primitive_desc grad_input(const dnnl::memory::desc& dx,
                                                             const dnnl::memory::desc& w,
                                                             const dnnl::memory::desc& dy) const {
    const auto ahead = hint();
    if (!ahead) return {};
    return describe_grad_input(spec(), dx, w, dy, ahead);
  }
  dnnl::convolution_backward_weights::primitive_desc grad_filter(
      const dnnl::memory::desc& x, const dnnl::memory::desc& dw,
      const dnnl::memory::desc& dy) const {
    const auto ahead = hint();
    if (!ahead) return {};
    return describe_grad_filter(spec(), x, dw, bias(), dy, ahead);
  }

 private:
  // oneDNN's gradients require the descriptor of their forward convolution.
  dnnl::convolution_forward::primitive_desc hint() const {
    Convolution plain = *this;
    plain.attributes = user_scratchpad();
    if (way != Way::Winograd) plain.way = Way::First;
    return plain.forward(any_desc(image, kImageAxes), any_filter(), any_desc(result, kImageAxes));
  }
  ConvolutionSpec spec() const {
    return {.algorithm = way == Way::Winograd ? dnnl::algorithm::convolution_winograd
                                              : dnnl::algorithm::convolution_direct,
            .strides = strides,
            .dilates = dilates,
            .before = before,
            .after = after,
            .attributes = attributes,
            .may_be_none = way != Way::First,
            .skipped = way == Way::Second  ? 1
                       : way == Way::Third ? 2
                                           : 0};
  }
};

}  // namespace lockstep::onednn
