// Cases of the ops that move elements.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

inline std::vector<OpCase> shape_cases() {
  std::vector<OpCase> cases;
  const auto add_case = [&](std::string name, std::vector<CaseInput> inputs,
                            std::function<CaseOutputs(Graph&, CaseInputs)> build,
                            bool timed = false) {
    cases.push_back({.name = std::move(name),
                     .inputs = std::move(inputs),
                     .build = std::move(build),
                     .timed = timed});
  };
  add_case("reshape", {f32({3, 4, 5})}, [](Graph&, CaseInputs in) {
    return square(reshape(in[0], {5, -1}));
  });
  add_case("reshape_to_scalar", {f32({1, 1})},
           [](Graph&, CaseInputs in) { return reshape(in[0], Ints{}); });
  add_case("reshape_empty", {f32({0, 6})}, [](Graph&, CaseInputs in) {
    return reshape(in[0], {-1, 2, 3});
  });

  struct Permutation {
    std::string name;
    Shape shape;
    Ints axes;
    bool timed = false;
  };
  for (const Permutation& p : std::vector<Permutation>{
           {"matrix", {17, 35}, {1, 0}},
           {"batched", {3, 5, 7}, {0, 2, 1}},
           {"rotated", {3, 5, 7}, {1, 2, 0}},
           {"reversed", {2, 3, 4, 5}, {3, 2, 1, 0}},
           {"swapped_middle", {2, 3, 4, 5}, {0, 2, 1, 3}},
           {"identity", {2, 3}, {0, 1}},
           {"size_one", {1, 3, 1}, {2, 0, 1}},
           {"empty", {0, 3}, {1, 0}},
           {"images_to_channels_first_timed", {32, 28, 28, 64}, {0, 3, 1, 2}, true},
           {"heads_timed", {8, 128, 8, 64}, {0, 2, 1, 3}, true}}) {
    add_case(
        "transpose_" + p.name, {f32(p.shape)},
        [p](Graph&, CaseInputs in) { return transpose(in[0], p.axes); }, p.timed);
  }

  for (int axis : {0, 1, -1}) {
    Shape a{2, 3, 4};
    const Shape b = a.with(axis, 5);
    const Shape c = a.with(axis, 0);
    add_case(fmt::format("concat_{}", axis < 0 ? "last" : std::to_string(axis)),
             {f32(a), f32(b), f32(c)}, [axis](Graph&, CaseInputs in) { return concat(in, axis); });
    add_case(fmt::format("split_{}", axis < 0 ? "last" : std::to_string(axis)),
             {f32(a.with(axis, 6))}, [axis](Graph&, CaseInputs in) {
               return split(in[0], {1, 3, 0, 2}, axis);
             });
  }
  add_case("split_one_piece_unused", {f32({5, 3})}, [](Graph&, CaseInputs in) {
    return split(in[0], {2, 3}, 0)[1];
  });
  add_case("concat_of_one", {f32({2, 3})}, [](Graph&, CaseInputs in) { return concat(in, 0); });

  add_case("slice", {f32({5, 6, 3})}, [](Graph&, CaseInputs in) {
    return slice(in[0], {1, 2, 0}, {3, -1, 2});
  });
  add_case("slice_rows", {f32({5, 6})}, [](Graph&, CaseInputs in) {
    return slice(in[0], {2, 0}, {2, -1});
  });
  add_case("slice_nothing", {f32({5, 6})}, [](Graph&, CaseInputs in) {
    return slice(in[0], {5, 0}, {0, -1});
  });
  add_case("pad", {f32({3, 4})}, [](Graph&, CaseInputs in) {
    return pad(in[0], {1, 0}, {2, 3}, 0.5);
  });
  add_case("pad_images", {f32({2, 3, 3, 2})}, [](Graph&, CaseInputs in) {
    return pad(in[0], {0, 1, 2, 0}, {0, 1, 1, 0});
  });
  add_case("pad_nothing_around_nothing", {f32({0, 4})}, [](Graph&, CaseInputs in) {
    return pad(in[0], {2, 0}, {1, 0});
  });
  add_case("broadcast_scalar", {f32({})}, [](Graph&, CaseInputs in) {
    return broadcast_to(in[0], Shape{3, 2});
  });
  add_case("broadcast_rows", {f32({4})}, [](Graph&, CaseInputs in) {
    return broadcast_to(in[0], Shape{2, 3, 4});
  });
  add_case("broadcast_columns", {f32({3, 1})}, [](Graph&, CaseInputs in) {
    return broadcast_to(in[0], Shape{2, 3, 4});
  });
  add_case("broadcast_to_nothing", {f32({1, 4})}, [](Graph&, CaseInputs in) {
    return broadcast_to(in[0], Shape{0, 4});
  });
  add_case("one_hot", {integers({4, 3}, 8, DType::I32, -2), f32({4, 3, 5})},
           [](Graph&, CaseInputs in) { return one_hot(in[0], 5, in[1].dtype()) * in[1]; });
  add_case("gather", {f32({7, 3}), integers({4, 2}, 7)},
           [](Graph&, CaseInputs in) { return gather(in[0], in[1]); });
  add_case("gather_scalars_by_u8", {f32({7}), integers({20}, 7, DType::U8)},
           [](Graph&, CaseInputs in) { return gather(in[0], in[1]); });
  add_case("gather_nothing", {f32({7, 3}), integers({0}, 7)},
           [](Graph&, CaseInputs in) { return gather(in[0], in[1]); });
  add_case("gather_rows_of_nothing", {f32({7, 0}), integers({4}, 7)},
           [](Graph&, CaseInputs in) { return gather(in[0], in[1]); });
  add_case("gather_grad", {f32({6, 3}), integers({6}, 4, DType::I32)},
           [](Graph&, CaseInputs in) { return gather_grad(in[0], in[1], 4); });
  add_case(
      "gather_timed", {f32({5000, 128}), integers({64, 64}, 5000)},
      [](Graph&, CaseInputs in) { return gather(in[0], in[1]); }, true);
  return cases;
}

}  // namespace lockstep
