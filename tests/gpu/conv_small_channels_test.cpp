// Our own convolutions of few channels (kernels/cuda/conv/conv_small_channels.h): tested directly,
// whether they are the fastest or not, and as one of several algorithms for a convolution.
#include "lockstep/kernels/cuda/conv/conv_small_channels.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "gpu/on_gpu.h"
#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"
#include "lockstep/device/cuda/runtime.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

struct FewCase {
  const char* name;
  Shape image;
  Shape filter;  // (kh, kw, in, o)
  Padding padding;
};

std::vector<FewCase> few_cases() {
  return {{"stem", {2, 64, 64, 3}, {7, 7, 3, 64}, {3, 3, 3, 3}},
          {"odd_sizes", {3, 45, 67, 3}, {7, 7, 3, 64}, {3, 3, 3, 3}},
          {"small_window", {3, 41, 37, 3}, {3, 3, 3, 32}, {1, 1, 1, 1}},
          {"one_channel", {3, 33, 31, 1}, {5, 5, 1, 16}, {0, 0, 0, 0}},
          {"two_channels", {5, 17, 9, 2}, {3, 4, 2, 72}, {0, 1, 2, 1}},
          {"four_channels_wide", {1, 33, 300, 4}, {7, 8, 4, 128}, {1, 2, 0, 3}},
          {"uneven_padding", {2, 21, 270, 3}, {3, 3, 3, 64}, {1, 0, 0, 1}},
          {"window_as_large_as_the_image", {1, 7, 9, 3}, {7, 7, 3, 8}, {0, 0, 0, 0}},
          {"more_padding_than_image", {1, 5, 5, 3}, {7, 7, 3, 32}, {6, 9, 6, 9}}};
}

ConvProblem problem_of(const FewCase& c, ConvWay way, DType dtype) {
  ConvProblem p;
  p.way = way;
  p.dtype = p.filter_dtype = dtype;
  p.n = c.image[0], p.h = c.image[1], p.w = c.image[2], p.c = c.image[3];
  p.kh = c.filter[0], p.kw = c.filter[1], p.in = c.filter[2], p.o = c.filter[3];
  p.stride_h = p.stride_w = 2;
  p.top = c.padding[0], p.bottom = c.padding[1], p.left = c.padding[2], p.right = c.padding[3];
  p.oh = (p.h + p.top + p.bottom - p.kh) / 2 + 1;
  p.ow = (p.w + p.left + p.right - p.kw) / 2 + 1;
  p.outputs_first = true;
  return p;
}

ConvOptions options_of(const FewCase& c) {
  return {.strides = {2, 2}, .padding = c.padding};
}

struct Sizes {
  int multiprocessors;
  int bytes;  // of shared memory per multiprocessor
};

// The real sizes, one multiprocessor that does all strips in turn, and little shared memory.
std::vector<Sizes> sizes() {
  int bytes = 0;
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0),
             "querying the shared memory");
  return {{gpu_of(gpu()).multiprocessors, bytes}, {1, bytes}, {1, 100 << 10}};
}

double epsilon(DType dtype) {
  return dtype == DType::F16 ? 0x1p-10 : 0x1p-7;
}

class GpuFewChannels : public ::testing::TestWithParam<FewCase> {};

TEST_P(GpuFewChannels, MatchTheCpuAndGiveStatistics) {
  LOCKSTEP_NEEDS_GPU();
  const FewCase& c = GetParam();
  const auto stream = gpu().make_stream();
  for (const DType dtype : {DType::F16, DType::BF16}) {
    SCOPED_TRACE(name_of(dtype));
    ConvProblem p = problem_of(c, ConvWay::Forward, dtype);
    ASSERT_TRUE(FewChannels::fits(p));
    const Tensor x = drawn(c.image, dtype, 1);
    const Tensor filter = drawn(c.filter, dtype, 2);
    const Tensor want = evaluate(
        {x, filter}, [&](CaseInputs in) { return conv2d(in[0], in[1], options_of(c)); },
        cpu_kernels());
    const auto image = on_gpu(x, dtype);
    const auto weights = on_gpu(outputs_first(filter), dtype);
    const auto row_major = on_gpu(filter, dtype);
    const auto result = gpu().allocate(want.bytes());
    const auto sums = gpu().allocate(2 * sizeof(float) * static_cast<std::size_t>(p.o));
    for (const Sizes& size : sizes()) {
      std::vector<Tensor> earlier;
      for (const bool statistics : {false, true, true}) {
        p.statistics = statistics;
        p.outputs_first = statistics;
        const FewChannels few(p, size.multiprocessors, size.bytes);
        const auto workspace = gpu().allocate(std::max<std::size_t>(few.workspace_bytes(), 1));
        auto* squares = reinterpret_cast<float*>(sums->data()) + p.o;
        few.forward(image->data(), (p.outputs_first ? weights : row_major)->data(), result->data(),
                    sums->data(), squares, workspace->data(), cuda_stream(*stream));
        stream->synchronize();
        const Tensor have = from_gpu(*result, dtype, want.shape());
        EXPECT_LE(relative_error(have, want), epsilon(dtype));
        if (!statistics) continue;
        const std::vector<Tensor> expected = evaluate_all({have}, [](CaseInputs in) {
          return std::vector<Value>{reduce_sum(in[0], {.axes = {0, 1, 2}}),
                                    reduce_sum(square(in[0]), {.axes = {0, 1, 2}})};
        });
        const Tensor both = from_gpu(*sums, DType::F32, Shape{2, p.o});
        const auto values = both.values<float>();
        const auto channels = static_cast<std::size_t>(p.o);
        const std::vector<float> first(values.begin(), values.begin() + p.o);
        const std::vector<float> second(values.begin() + p.o, values.end());
        ASSERT_EQ(first.size(), channels);
        // Positive and negative numbers cancel, so few digits of the sums remain.
        EXPECT_LE(relative_error(floats(first), expected[0]), 1e-4);
        EXPECT_LE(relative_error(floats(second), expected[1]), 1e-5);
        if (!earlier.empty()) {
          EXPECT_TRUE(have.same_bits(earlier[0]));
          EXPECT_TRUE(both.same_bits(earlier[1]));
        }
        earlier = {have, both};
      }
    }
  }
}

TEST_P(GpuFewChannels, GiveTheFilterGradientOfTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  const FewCase& c = GetParam();
  const auto stream = gpu().make_stream();
  for (const DType dtype : {DType::F16, DType::BF16}) {
    SCOPED_TRACE(name_of(dtype));
    ConvProblem p = problem_of(c, ConvWay::GradFilter, dtype);
    const Tensor x = drawn(c.image, dtype, 1);
    const Tensor dy = drawn(Shape{p.n, p.oh, p.ow, p.o}, dtype, 3);
    const Tensor want = evaluate(
        {x, dy},
        [&](CaseInputs in) {
          return conv2d_grad_filter(in[0], in[1], c.filter, false, options_of(c))[0];
        },
        cpu_kernels());
    const auto image = on_gpu(x, dtype);
    const auto grad = on_gpu(dy, dtype);
    const auto filter = gpu().allocate(want.bytes());
    for (const Sizes& size : sizes()) {
      for (const DType wide : {DType::F32, dtype}) {
        SCOPED_TRACE(name_of(wide));
        p.filter_dtype = wide;
        p.outputs_first = wide != DType::F32;
        ASSERT_TRUE(FewChannels::fits(p));
        const FewChannels few(p, size.multiprocessors, size.bytes);
        const auto workspace = gpu().allocate(few.workspace_bytes());
        std::vector<Tensor> earlier;
        for (int time = 0; time < 2; ++time) {
          few.grad_filter(image->data(), grad->data(), filter->data(), workspace->data(),
                          cuda_stream(*stream));
          stream->synchronize();
          const Tensor have = from_gpu(*filter, wide, c.filter);
          EXPECT_LE(relative_error(p.outputs_first ? outputs_last(have) : have, want),
                    wide == DType::F32 ? 1e-5 : epsilon(dtype));
          if (!earlier.empty()) {
            EXPECT_TRUE(have.same_bits(earlier[0]));
          }
          earlier = {have};
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuFewChannels, ::testing::ValuesIn(few_cases()),
                         [](const auto& row) { return std::string(row.param.name); });

// A network's first block, large enough for the algorithms to be measured.
OpCase stem() {
  return {.name = "stem",
          .inputs = {held(f32({8, 65, 66, 3})), f32_uniform({7, 7, 3, 64}, -0.1, 0.1),
                     f32_positive({64}), f32({64})},
          .build =
              [](Graph&, CaseInputs in) {
                const Value x = conv2d(in[0], in[1], {.strides = {2, 2}, .padding = {3, 3, 3, 3}});
                const BatchNormResult norm = batch_norm(x, in[2], in[3]);
                return std::vector<Value>{relu(norm.y), norm.mean, norm.variance};
              },
          .turns_signs = true};
}

// Rewrites a file of choices so that convolutions use `way`; returns how many were changed.
int choose_way(const std::string& path, const std::string& way) {
  std::ifstream before(path);
  std::ostringstream after;
  int changed = 0;
  for (std::string line; std::getline(before, line);) {
    const std::size_t tab = line.find('\t');
    const std::string key = line.substr(0, tab);
    if (key.find(" fastest way of ") != std::string::npos) {
      line = key + '\t' + way;
      ++changed;
    } else if (key.find(" statistics pay: ") != std::string::npos) {
      line = key + "\t1";
    }
    after << line << '\n';
  }
  std::ofstream(path) << after.str();
  return changed;
}

TEST(GpuStem, EveryAlgorithmOfAStemAgreesWithTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  const std::string path = (folder / "plans").string();
  for (const DType dtype : {DType::F16, DType::BF16}) {
    SCOPED_TRACE(name_of(dtype));
    expect_agreement_in(stem(), dtype, kernels_of_tests({.plan_cache = path}), gpu());
    for (const char* way : {"own", "folded", "4 channels", "8 channels", "plain"}) {
      SCOPED_TRACE(way);
      EXPECT_GE(choose_way(path, way), 2);
      const KernelLibrary library = kernels_of_tests({.plan_cache = path});
      expect_agreement_in(stem(), dtype, library, gpu());
      if (std::string(way) != "own") continue;
      Graph graph = build_mixed_graph(stem(), dtype);
      optimize(graph, library);
      EXPECT_EQ(std::ranges::count_if(graph.nodes(),
                                      [](const Node& node) {
                                        return node.op == Op::Conv2D &&
                                               node.attrs.has("statistics");
                                      }),
                1);
    }
  }
}

}  // namespace
}  // namespace lockstep
