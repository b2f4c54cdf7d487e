#include "lockstep/graph/ops/matmul.h"

#include <algorithm>

#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/rules.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

Attrs matmul_attrs(const MatMulOptions& options) {
  Attrs attrs{{"transpose_a", options.transpose_a}, {"transpose_b", options.transpose_b}};
  set_activation(attrs, options.activation, options.alpha);
  return attrs;
}

bool same_leading_axes(const Shape& a, const Shape& b) {
  return a.rank() == b.rank() && leading_shape(leading_shape(a)) == leading_shape(leading_shape(b));
}

// "(784, 32)ᵀ" if the matrix is read transposed.
std::string operand(const Shape& shape, bool transposed) {
  return shape.str() + (transposed ? "ᵀ" : "");
}

// The type of a mask for a matrix of this size (matmul.h).
ValueType mask_of(std::int64_t rows, std::int64_t columns) {
  return {DType::U8, {rows, (columns + 127) / 128 * 16}};
}

std::vector<ValueType> infer_matmul(const OpCall& call) {
  require_floating(call, 0, "the left matrix");
  require(call.dtype(1) == call.dtype(0), "the matrices have different types: {} × {}",
          call.inputs[0].str(), call.inputs[1].str());
  const Shape& a = call.shape(0);
  const Shape& b = call.shape(1);
  require(a.rank() >= 2 && b.rank() >= 2, "both sides need at least two axes: {} × {}", a, b);
  require(b.rank() == 2 || same_leading_axes(a, b),
          "leading axes differ: {} × {}; they must be equal, or absent on the right", a, b);
  const bool transpose_a = call.attrs.flag("transpose_a");
  const bool transpose_b = call.attrs.flag("transpose_b");
  const std::int64_t m = a[transpose_a ? -1 : -2];
  const std::int64_t n = b[transpose_b ? -2 : -1];
  require(a[transpose_a ? -2 : -1] == b[transpose_b ? -1 : -2], "inner dimensions differ: {} × {}",
          operand(a, transpose_a), operand(b, transpose_b));
  if (call.attrs.has(kAccumulates)) {
    require(a.rank() == 2 && (call.inputs.size() == 3 || call.inputs.size() == 4),
            "a product that accumulates needs two matrices and what it is added to");
    for (const char* other : {"activation", "bits", "column_sums", "masked"}) {
      require(!call.attrs.has(other), "a product that accumulates cannot have {}", other);
    }
    require_type(call, 2, {call.dtype(0), {m, n}}, "what a product is added to");
    if (call.inputs.size() == 4) require_type(call, 3, {DType::F32, {}}, "whether it is added");
    return {call.inputs[2]};
  }
  const bool masked = call.attrs.has("masked");
  if (masked) {
    require(a.rank() == 2 && call.inputs.size() == 3 && !call.attrs.has("activation"),
            "a masked product needs two matrices, and no bias or activation");
    require_type(call, 2, mask_of(m, n), "the mask");
  } else if (call.inputs.size() > 2) {
    require_type(call, 2, {call.dtype(0), {n}}, "the bias");
  }
  std::vector<ValueType> outputs = {{call.dtype(0), a.with(-2, m).with(-1, n)}};
  if (call.attrs.has("bits")) {
    require(a.rank() == 2 && call.attrs.text_or_empty("activation") == "relu",
            "a mask needs a product of two matrices, followed by ReLU");
    outputs.push_back(mask_of(m, n));
  }
  if (call.attrs.has("column_sums")) {
    require(
        a.rank() == 2 && b.rank() == 2 && !transpose_b && call.inputs.size() == 2 &&
            !call.attrs.has("activation"),
        "column sums need two matrices, the right one not transposed, and no bias or activation");
    outputs.push_back({call.dtype(0), {n}});
  }
  return outputs;
}

// A product that accumulates reads an element of what it is added to before it writes the result.
std::vector<std::pair<int, int>> in_place_matmul(const OpCall& call) {
  if (!call.attrs.has(kAccumulates)) return {};
  return {{2, 0}};
}

Value swap_last_axes(Value x) {
  Ints permutation = leading_axes(x.shape());
  permutation.back() = x.shape().rank() - 1;
  permutation.push_back(x.shape().rank() - 2);
  return transpose(x, permutation);
}

// (…, m, n) as (rows, n).
Value fold_rows(Value x) {
  return reshape(x, Shape{leading_shape(x.shape()).elements(), x.shape()[-1]});
}

// With A and B the matrices as they are multiplied: dA = dy × Bᵀ, dB = Aᵀ × dy; either is
// transposed if its operand was.
Value gradient_of_a(Value dy, Value b, bool transpose_a, bool transpose_b) {
  if (!transpose_a) return matmul(dy, b, {.transpose_b = !transpose_b});
  if (b.shape().rank() < dy.shape().rank()) {
    return swap_last_axes(matmul(dy, b, {.transpose_b = !transpose_b}));
  }
  return matmul(b, dy, {.transpose_a = transpose_b, .transpose_b = true});
}

Value gradient_of_b(Value dy, Value a, int rank_b, bool transpose_a, bool transpose_b) {
  if (rank_b < a.shape().rank()) {
    a = fold_rows(transpose_a ? swap_last_axes(a) : a);
    dy = fold_rows(dy);
    transpose_a = false;
  }
  if (transpose_b) return matmul(dy, a, {.transpose_a = true, .transpose_b = transpose_a});
  return matmul(a, dy, {.transpose_a = !transpose_a});
}

std::vector<Value> gradient_matmul(const GradCall& call) {
  const Value dy = gradient_before_activation(call);
  const Value a = call.inputs[0];
  const Value b = call.inputs[1];
  const bool transpose_a = call.attrs.flag("transpose_a");
  const bool transpose_b = call.attrs.flag("transpose_b");
  std::vector<Value> grads(call.inputs.size());
  if (call.needed[0]) grads[0] = gradient_of_a(dy, b, transpose_a, transpose_b);
  if (call.needed[1]) grads[1] = gradient_of_b(dy, a, b.shape().rank(), transpose_a, transpose_b);
  if (grads.size() > 2 && call.needed[2]) {
    grads[2] = reduce_sum(dy, {.axes = leading_axes(dy.shape())});
  }
  return grads;
}

Cost cost_matmul(const OpCall& call, std::span<const ValueType> outputs) {
  const std::int64_t inner = call.shape(0)[call.attrs.flag("transpose_a") ? -2 : -1];
  const auto results = static_cast<double>(outputs[0].shape.elements());
  return {2.0 * results * static_cast<double>(inner), bytes_moved(call, outputs)};
}

// Slices of rows give slices of rows, slices of leading dimensions theirs; a product that contracts
// over sliced dimensions gives a summand of the whole one: the gradient of a weight. A replicated
// side of such a product was broadcast along the samples.
std::vector<Placement> place_matmul(const PlaceCall& call) {
  if (const auto settled = place_settled(call)) return *settled;
  const bool alone = call.inputs.size() == 2 && !call.attrs().has("activation");
  if (alone && (call.inputs[0].is_partial() || call.inputs[1].is_partial())) {
    return place_product(call);
  }
  const bool transposed[] = {call.attrs().flag("transpose_a"), call.attrs().flag("transpose_b")};
  const int result_rank = call.output(0).rank();
  std::vector<Placement> found;
  for (std::size_t i = 0; i < 2; ++i) {
    const Placement& p = call.inputs[i];
    if (p.is_partial()) return place_own(call);
    if (!p.is_sharded()) continue;
    const int rank = call.shape(i).rank();
    // Of a the inner dimension is the last, of b the one before it, unless transposed.
    const int inner = rank - (transposed[i] != (i == 1) ? 2 : 1);
    const int outer = 2 * rank - 3 - inner;
    if (p.dim == inner) {
      found.push_back(Placement::partial());
    } else {
      found.push_back(Placement::sharded(p.dim == outer ? result_rank - (i == 0 ? 2 : 1) : p.dim));
    }
  }
  for (std::size_t i = 2; i < call.inputs.size(); ++i) {
    require(call.inputs[i].is_replicated(), "the bias is {}; it must be Replicated",
            call.inputs[i].str());
  }
  require(!found.empty() &&
              std::ranges::all_of(found, [&](const Placement& p) { return p == found.front(); }),
          "{} × {}: the slices do not belong together; gather one side first", call.inputs[0].str(),
          call.inputs[1].str());
  if (found.front().is_partial() && !alone) return place_own(call);
  return call.all(found.front());
}

}  // namespace

Value matmul(Value a, Value b, MatMulOptions options) {
  return a.graph().add1(Op::MatMul, {a, b}, matmul_attrs(options));
}

Value matmul(Value a, Value b, Value bias, MatMulOptions options) {
  return a.graph().add1(Op::MatMul, {a, b, bias}, matmul_attrs(options));
}

bool accumulates(const Node& node) {
  return node.op == Op::MatMul && node.attrs.has(kAccumulates);
}

std::vector<OpDef> matmul_ops() {
  return {{.op = Op::MatMul,
           .name = "matmul",
           .precision = PrecisionRule::Half,
           .infer = infer_matmul,
           .gradient = gradient_matmul,
           .cost = cost_matmul,
           .find_in_place = in_place_matmul,
           .f32_inputs = {3},
           .place = place_matmul}};
}

}  // namespace lockstep
