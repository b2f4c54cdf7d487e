#include "lockstep/kernels/cuda/matmul/matmul_choice.h"

#include <array>
#include <limits>
#include <optional>
#include <sstream>

#include "lockstep/kernels/cuda/libraries/measure.h"
#include "lockstep/kernels/cuda/libraries/plan_cache.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostWorkspace = std::size_t{32} << 20;
constexpr double kSmall = 1e4;  // operations for which measuring is not worth its time
constexpr double kShort = 1e8;  // operations up to which they take a few microseconds
// How much longer a product may take if it also computes column sums, or writes or reads ReLU's
// mask as bits. Some of cuBLASLt's kernels fuse these; others do them in a second launch, or
// slowly, which is no better than our own kernels (bench/notes/gpu.md).
constexpr float kFree = 1.1f;
constexpr std::int64_t kLongestMaskRest = 16;  // bytes of padding per row of a mask
constexpr int kMostMeasured = 8;
constexpr int kMostMeasuredOfShort = 24;

// Epilogues for a product, those that do the most first. cuBLASLt computes the tanh form of GELU,
// less precisely than f32. Its bias has the result's type.
std::vector<cublasLtEpilogue_t> epilogues_for(const MatmulProduct& p) {
  std::vector<cublasLtEpilogue_t> list;
  // In f32 it would be a separate launch.
  if (p.column_sums && p.dtype != DType::F32) list.push_back(CUBLASLT_EPILOGUE_BGRADA);
  if (p.masked) list.push_back(CUBLASLT_EPILOGUE_DRELU);
  const bool bias = p.tail.biased && p.tail.bias_dtype == p.dtype;
  if (bias || !p.tail.biased) {
    if (p.bits) {
      list.push_back(bias ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_AUX);
    }
    if (p.tail.activation == CudaActivation::Relu) {
      list.push_back(bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU);
    }
    if (p.tail.activation == CudaActivation::GeluTanh && p.dtype != DType::F32) {
      list.push_back(bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
    }
  }
  if (bias) list.push_back(CUBLASLT_EPILOGUE_BIAS);
  list.push_back(CUBLASLT_EPILOGUE_DEFAULT);
  return list;
}

// A product's matrices, filled with random numbers, and a workspace, per lane of a stopwatch.
class Trial {
 public:
  Trial(const MatmulProduct& p, std::size_t lanes)
      : product_(p),
        a_count_(p.batches * p.m * p.k),
        b_count_(p.stride_b == 0 ? p.k * p.n : p.batches * p.k * p.n),
        y_bytes_(bytes(p.batches * p.m * p.n)),
        bits_bytes_(p.bits || p.masked ? y_bytes_ + bytes(p.m * kLongestMaskRest) : 0),
        memory_(lanes * (bytes(a_count_) + bytes(b_count_) + y_bytes_ + 2 * bytes(p.n) +
                         bits_bytes_ + kMostWorkspace)),
        watch_(lanes) {
    std::byte* next = memory_.data();
    if (next == nullptr) return;
    const auto take = [&](std::size_t size) { return std::exchange(next, next + size); };
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      std::byte* a = take(bytes(a_count_));
      std::byte* b = take(bytes(b_count_));
      std::byte* bias = take(bytes(p.n));
      MatmulPlaces& places = places_.emplace_back();
      places = {.a = a, .b = b, .bias = bias, .y = take(y_bytes_), .sums = take(bytes(p.n))};
      if (p.accumulates) places.added = places.y;
      places.bits = take(bits_bytes_);
      workspaces_.push_back(take(kMostWorkspace));
      fill_random(a, p.dtype, a_count_, 1, watch_.stream());
      fill_random(b, p.dtype, b_count_, 2, watch_.stream());
      fill_random(bias, p.dtype, p.n, 3, watch_.stream());
    }
  }

  bool has_memory() const { return memory_.data() != nullptr; }

  struct Timed {
    MatmulChoice choice;
    float time = std::numeric_limits<float>::infinity();
  };

  // The fastest of some algorithms, or, for a small product, the first that runs; none if none
  // does.
  std::optional<Timed> fastest(MatmulDescriptors& descriptors,
                               const std::vector<MatmulChoice>& choices) {
    std::optional<Timed> best;
    for (const MatmulChoice& choice : choices) {
      const float best_time = best.value_or(Timed()).time;
      const auto run = [&](cudaStream_t stream, std::size_t lane) {
        return runs(descriptors, choice, stream, lane);
      };
      const std::optional<float> time = watch_.in_a_row(run, best_time);
      if (!time || *time >= best_time) continue;
      best = {choice, *time};
      if (product_.operations() < kSmall) break;
    }
    return best;
  }

  // Whether NaN propagates. cuBLASLt does not document whether its ReLU keeps it, and a model that
  // has diverged must not look healthy.
  bool keeps_nan(MatmulDescriptors& descriptors, const MatmulChoice& choice) {
    const MatmulPlaces& places = places_.front();
    check_cuda(
        cudaMemsetAsync(const_cast<std::byte*>(places.a), 0xff, bytes(a_count_), watch_.stream()),
        "filling a matrix with NaN");
    check_cuda(cudaMemsetAsync(places.y, 0, size_of(product_.dtype), watch_.stream()),
               "zeroing a product");
    if (!runs(descriptors, choice, watch_.stream(), 0)) return false;
    std::array<std::byte, 4> first = {};
    check_cuda(cudaMemcpyAsync(first.data(), places.y, size_of(product_.dtype),
                               cudaMemcpyDeviceToHost, watch_.stream()),
               "reading a product");
    check_cuda(cudaStreamSynchronize(watch_.stream()), "reading a product");
    fill_random(const_cast<std::byte*>(places.a), product_.dtype, a_count_, 1, watch_.stream());
    return first != std::array<std::byte, 4>{};  // a ReLU that drops NaN returns zeros
  }

 private:
  std::size_t bytes(std::int64_t count) const {
    return (static_cast<std::size_t>(count) * size_of(product_.dtype) + 255) / 256 * 256;
  }
  bool runs(MatmulDescriptors& descriptors, const MatmulChoice& choice, cudaStream_t stream,
            std::size_t lane) const {
    descriptors.place_epilogue(places_[lane]);
    return descriptors.run(choice, places_[lane], workspaces_[lane], stream) ==
           CUBLAS_STATUS_SUCCESS;
  }

  MatmulProduct product_;
  std::int64_t a_count_;
  std::int64_t b_count_;
  std::size_t y_bytes_;
  std::size_t bits_bytes_;  // at least a mask's size: a bit per element, rows padded to 128 bits
  Scratch memory_;
  Stopwatch watch_;
  std::vector<MatmulPlaces> places_;  // per lane
  std::vector<std::byte*> workspaces_;
};

// A choice as stored in the plan cache: the epilogue, then the algorithm's data.
std::string text_of(const MatmulChoice& choice) {
  return fmt::format("{} {}", static_cast<int>(choice.epilogue),
                     fmt::join(choice.algorithm.data, " "));
}

std::optional<MatmulChoice> parse_choice(const std::string& text) {
  std::istringstream stream(text);
  MatmulChoice choice;
  int epilogue = 0;
  stream >> epilogue;
  for (std::uint64_t& word : choice.algorithm.data) stream >> word;
  if (!stream) return {};
  choice.epilogue = static_cast<cublasLtEpilogue_t>(epilogue);
  return choice;
}

// The choice of an earlier run; none if there is none, or if it no longer works.
std::optional<MatmulChoice> remembered(PlanCache& cache, const std::string& key, CublasLt& library,
                                       const MatmulProduct& p) {
  const std::optional<std::string> text = cache.find(key);
  if (!text) return {};
  std::optional<MatmulChoice> choice = parse_choice(*text);
  const auto epilogues = epilogues_for(p);
  if (choice && std::ranges::find(epilogues, choice->epilogue) != epilogues.end() &&
      MatmulDescriptors(library, p, choice->epilogue).accepts(*choice) &&
      choice->workspace_bytes <= kMostWorkspace) {
    return choice;
  }
  cache.forget(key);
  return {};
}

// A new choice, and whether it was measured.
std::pair<MatmulChoice, bool> choose(CudaContext& context, CublasLt& library,
                                     const MatmulProduct& p) {
  std::optional<Trial> trial;
  if (context.measure) trial.emplace(p, lanes_to_measure(context));
  if (trial && !trial->has_memory()) trial.reset();
  const int most = p.operations() < kShort ? kMostMeasuredOfShort : kMostMeasured;
  std::optional<Trial::Timed> best;
  for (const cublasLtEpilogue_t epilogue : epilogues_for(p)) {
    // See keeps_nan and kFree.
    const bool extra = adds_columns(epilogue) || writes_bits(epilogue) || reads_bits(epilogue);
    if ((is_relu(epilogue) || extra) && !trial) continue;
    MatmulDescriptors descriptors(library, p, epilogue);
    const std::vector<MatmulChoice> choices =
        descriptors.suggestions(kMatmulAlignment, kMostWorkspace, most);
    if (choices.empty()) continue;
    if (!trial) return {choices.front(), false};
    const std::optional<Trial::Timed> timed = trial->fastest(descriptors, choices);
    if (!timed || (is_relu(epilogue) && !trial->keeps_nan(descriptors, timed->choice))) continue;
    if (!best || best->time > kFree * timed->time) best = timed;
    if (!extra) break;
  }
  if (best) return {best->choice, true};
  fail<UsageError>("[matmul] cuBLASLt has no algorithm for {}", p.name());
}

}  // namespace

MatmulChoice matmul_choice(CudaContext& context, const MatmulProduct& p) {
  CublasLt& library = context.cublaslt();
  const std::lock_guard lock(library.mutex);
  const std::string name = p.name();
  const auto known = library.chosen.find(name);
  if (known != library.chosen.end()) return known->second;
  const Gpu& gpu = context.gpu();
  const std::string key =
      fmt::format("{} {}.{} cublaslt {} {} {}", gpu.model, gpu.major, gpu.minor, library.version,
                  lanes_to_measure(context) == 1 ? "recorded" : "shared", name);
  PlanCache& cache = context.plans();
  std::optional<MatmulChoice> choice = remembered(cache, key, library, p);
  if (!choice) {
    const auto [made, measured] = choose(context, library, p);
    choice = made;
    const std::string own = text_of(made);
    if (measured && cache.keep(key, own) != own) {  // another process was first
      if (const auto theirs = remembered(cache, key, library, p)) choice = theirs;
    }
  }
  return library.chosen.emplace(name, *choice).first->second;
}

}  // namespace lockstep
