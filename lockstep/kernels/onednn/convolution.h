// A convolution in oneDNN's terms, and which of oneDNN's implementations computes it.
//
// oneDNN has several for most shapes, in an order of its own. The first of its direct ones is the
// kernel that is used; the others stand behind it for a library that chooses by measuring
// (choice.h): Winograd's algorithm (on AVX-512) rounds differently, and so do the direct ones among
// themselves. For one channel going back, say, its product-based one is three times as fast on
// AVX2.
#pragma once

#include <string>
#include <utility>

#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {

// Which of oneDNN's implementations: of the direct ones the first that it has, the next, or the one
// after that, not counting those that are slow on every machine; or Winograd's.
enum class Way { First, Second, Third, Winograd };

// Moves to the implementation that a way names; false where there is none. oneDNN reads the op's
// descriptor while it looks, so that must still be there.
template <class PrimitiveDesc>
bool advance(PrimitiveDesc& desc, Way way) {
  const auto is_slow = [&] {
    const std::string name = desc.impl_info_str();
    return name.starts_with("ref") || name.find("sse41") != std::string::npos;
  };
  for (int skip = way == Way::Second ? 1 : way == Way::Third ? 2 : 0; skip > 0;) {
    if (!desc.next_impl()) return false;
    if (!is_slow()) --skip;
  }
  return true;
}

// What all three nodes of a convolution share, in oneDNN's terms. Its descriptors of primitives are
// empty where oneDNN has no implementation for the way; for the first it always has.
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
  // The filter as it lies row-major: (kh, kw, I, O).
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

  dnnl::algorithm algorithm() const {
    return way == Way::Winograd ? dnnl::algorithm::convolution_winograd
                                : dnnl::algorithm::convolution_direct;
  }
  dnnl::convolution_forward::primitive_desc forward(const dnnl::memory::desc& x,
                                                    const dnnl::memory::desc& w,
                                                    const dnnl::memory::desc& y) const {
    const dnnl::convolution_forward::desc op(dnnl::prop_kind::forward_training, algorithm(), x, w,
                                             bias(), y, strides, dilates, before, after);
    dnnl::convolution_forward::primitive_desc desc(op, attributes, engine(), allows_none());
    if (desc && !advance(desc, way)) return {};
    return desc;
  }
  // oneDNN's gradients want to know the forward convolution that they belong to.
  dnnl::convolution_forward::primitive_desc hint() const {
    Convolution plain = *this;
    plain.attributes = user_scratchpad();
    if (way != Way::Winograd) plain.way = Way::First;
    return plain.forward(any_desc(image, kImageAxes), any_filter(), any_desc(result, kImageAxes));
  }
  dnnl::convolution_backward_data::primitive_desc grad_input(const dnnl::memory::desc& dx,
                                                             const dnnl::memory::desc& w,
                                                             const dnnl::memory::desc& dy) const {
    const auto ahead = hint();
    if (!ahead) return {};
    const dnnl::convolution_backward_data::desc op(algorithm(), dx, w, dy, strides, dilates, before,
                                                   after);
    dnnl::convolution_backward_data::primitive_desc desc(op, attributes, engine(), ahead,
                                                         allows_none());
    if (desc && !advance(desc, way)) return {};
    return desc;
  }
  dnnl::convolution_backward_weights::primitive_desc grad_filter(
      const dnnl::memory::desc& x, const dnnl::memory::desc& dw,
      const dnnl::memory::desc& dy) const {
    const auto ahead = hint();
    if (!ahead) return {};
    const dnnl::convolution_backward_weights::desc op(algorithm(), x, dw, bias(), dy, strides,
                                                      dilates, before, after);
    dnnl::convolution_backward_weights::primitive_desc desc(op, attributes, engine(), ahead,
                                                            allows_none());
    if (desc && !advance(desc, way)) return {};
    return desc;
  }

 private:
  bool allows_none() const { return way != Way::First; }
};

}  // namespace lockstep::onednn
