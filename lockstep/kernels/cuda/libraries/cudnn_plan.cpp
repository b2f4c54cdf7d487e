#include "lockstep/kernels/cuda/libraries/cudnn_plan.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "lockstep/kernels/cuda/libraries/measure.h"
#include "lockstep/kernels/cuda/libraries/plan_cache.h"

namespace lockstep {
namespace {

using Plan = std::shared_ptr<const CudnnPlan>;

constexpr std::size_t kMostSuggestions = 64;
constexpr std::size_t kMostMeasured = 10;
constexpr std::size_t kMostKnobs = CUDNN_KNOB_TYPE_COUNTS;
constexpr std::size_t kMostNotes = 32;  // newer versions have more than the header we compile with

// The engine that a configuration sets up.
CudnnDescriptor engine_of(const CudnnDescriptor& configuration) {
  std::vector<CudnnDescriptor> parts =
      configuration.parts(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  ensure(parts.size() == 1, "[cudnn] a configuration has no engine");
  return std::move(parts.front());
}

template <class T>
T value_of(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, T otherwise) {
  const std::vector<T> values = descriptor.values<T>(name, 1);
  return values.empty() ? otherwise : values.front();
}

CudnnEngine read_engine(const CudnnDescriptor& configuration) {
  CudnnEngine engine;
  engine.index =
      value_of<std::int64_t>(engine_of(configuration), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1);
  for (const CudnnDescriptor& choice : configuration.parts(
           CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMostKnobs)) {
    engine.knobs.emplace_back(
        value_of(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_KNOB_TYPE_COUNTS),
        value_of<std::int64_t>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 0));
  }
  return engine;
}

// Whether an engine is deterministic and precise enough. Engines that transform the image
// (Winograd, FFT) also spread a NaN to results that do not depend on it.
bool is_acceptable(const CudnnDescriptor& configuration, const CudnnPlanOptions& options) {
  const auto notes =
      engine_of(configuration)
          .values<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kMostNotes);
  return std::ranges::none_of(notes, [&](cudnnBackendNumericalNote_t note) {
    switch (note) {
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
      case CUDNN_NUMERICAL_NOTE_FFT:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        return true;
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        return options.exact;
      default:
        return false;
    }
  });
}

// The acceptable configurations that cuDNN suggests for a graph, the likely fastest first.
std::vector<CudnnDescriptor> suggestions(const CudnnGraph& graph, cudnnBackendHeurMode_t mode,
                                         const CudnnPlanOptions& options) {
  CudnnDescriptor heuristics(graph.cudnn(), CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.descriptor());
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  if (heuristics.finish() != CUDNN_STATUS_SUCCESS) return {};
  const std::size_t count =
      std::min(heuristics.count_parts(CUDNN_ATTR_ENGINEHEUR_RESULTS), kMostSuggestions);
  std::vector<CudnnDescriptor> acceptable;
  for (CudnnDescriptor& configuration :
       heuristics.parts(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, count)) {
    if (is_acceptable(configuration, options)) acceptable.push_back(std::move(configuration));
  }
  return acceptable;
}

// Memory for a graph's tensors, filled with random numbers, and for a workspace, per lane of a
// stopwatch.
class Trial {
 public:
  Trial(const CudnnGraph& graph, std::size_t workspace_bytes, std::size_t lanes)
      : memory_(lanes * (bytes_of(graph) + rounded(workspace_bytes))), watch_(lanes) {
    std::byte* next = memory_.data();
    if (next == nullptr) return;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      CudnnPlan::Places& places = places_.emplace_back();
      for (CudnnGraph::Id id : graph.bound()) {
        const CudnnTensor& tensor = graph.tensor(id);
        if (tensor.is_by_value) {
          places.emplace_back(id, &number_);
          continue;
        }
        fill_random(next, tensor.dtype, tensor.elements(), static_cast<std::uint32_t>(id),
                    watch_.stream());
        places.emplace_back(id, next);
        next += bytes_of(tensor);
      }
      workspaces_.push_back(next);
      next += rounded(workspace_bytes);
    }
  }

  bool has_memory() const { return memory_.data() != nullptr; }

  // The plan's time in milliseconds; nothing if it does not run.
  std::optional<float> time(const CudnnPlan& plan, float best) {
    std::vector<CudnnDescriptor> bound;
    for (std::size_t lane = 0; lane < places_.size(); ++lane) {
      bound.push_back(plan.bind(places_[lane], workspaces_[lane]));
    }
    const auto run = [&](cudaStream_t stream, std::size_t lane) {
      return plan.run(bound[lane], stream) == CUDNN_STATUS_SUCCESS;
    };
    return watch_.median(run, best);
  }

 private:
  static std::size_t bytes_of(const CudnnTensor& tensor) {
    return rounded(static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype));
  }
  static std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  static std::size_t bytes_of(const CudnnGraph& graph) {
    std::size_t total = 0;
    for (CudnnGraph::Id id : graph.bound()) total += bytes_of(graph.tensor(id));
    return total;
  }

  Scratch memory_;
  Stopwatch watch_;
  std::vector<CudnnPlan::Places> places_;  // per lane
  std::vector<std::byte*> workspaces_;
  float number_ = 1.0f;
};

// A plan, and whether it was measured and is therefore worth caching.
struct Choice {
  Plan plan;
  bool measured = false;
};

// The fastest of some plans; of two equally fast ones, the one with less workspace. None if none
// runs.
Choice fastest(const std::vector<Plan>& plans, std::size_t lanes) {
  if (plans.empty()) return {};
  std::size_t workspace = 0;
  for (const Plan& plan : plans) workspace = std::max(workspace, plan->workspace_bytes());
  Trial trial(plans.front()->graph(), workspace, lanes);
  if (!trial.has_memory()) return {plans.front(), false};
  constexpr float kAsFast = 0.02f;
  Choice best{nullptr, true};
  float best_time = std::numeric_limits<float>::infinity();
  for (const Plan& plan : plans) {
    const std::optional<float> time = trial.time(*plan, best_time);
    if (!time) continue;
    const bool faster = *time < best_time * (1.0f - kAsFast);
    const bool smaller = best.plan != nullptr && *time < best_time * (1.0f + kAsFast) &&
                         plan->workspace_bytes() < best.plan->workspace_bytes();
    if (!faster && !smaller) continue;
    best.plan = plan;
    best_time = *time;
  }
  return best;
}

// A new choice among the suggestions of one of cuDNN's heuristics.
Choice choose(const std::shared_ptr<const CudnnGraph>& graph, cudnnBackendHeurMode_t mode,
              const CudnnPlanOptions& options, const CudaContext& context) {
  const std::size_t lanes = lanes_to_measure(context);
  std::vector<Plan> plans;
  for (CudnnDescriptor& configuration : suggestions(*graph, mode, options)) {
    Plan plan = CudnnPlan::make(graph, std::move(configuration));
    if (plan == nullptr || plan->workspace_bytes() > options.most_workspace) continue;
    if (!context.measure) return {std::move(plan), false};
    plans.push_back(std::move(plan));
    if (options.small) {
      if (const Choice choice = fastest(plans, lanes); choice.plan != nullptr) return choice;
      plans.clear();
    }
    if (plans.size() == kMostMeasured) break;
  }
  return fastest(plans, lanes);
}

// The plan that an earlier run chose; none if there is none, or if it no longer works.
Plan remembered(PlanCache& cache, const std::string& key,
                const std::shared_ptr<const CudnnGraph>& graph) {
  const std::optional<std::string> text = cache.find(key);
  if (!text) return nullptr;
  const std::optional<CudnnEngine> engine = CudnnEngine::parse(*text);
  Plan plan = engine ? CudnnPlan::make(graph, *engine) : nullptr;
  if (plan == nullptr) cache.forget(key);
  return plan;
}

Plan find_plan(CudaContext& context, Cudnn& cudnn, const std::string& problem,
               const std::function<void(CudnnGraph&)>& describe, const CudnnPlanOptions& options) {
  const auto graph = std::make_shared<CudnnGraph>(cudnn);
  describe(*graph);
  if (const cudnnStatus_t status = graph->finish(); status != CUDNN_STATUS_SUCCESS) {
    cudnn.refusals.push_back(fmt::format("{}: {}", problem, cudnn.last_words(status)));
    return nullptr;
  }
  const Gpu& gpu = context.gpu();
  const std::string key =
      fmt::format("{} {}.{} cudnn {} {}{}", gpu.model, gpu.major, gpu.minor, cudnn.version,
                  lanes_to_measure(context) == 1 ? "" : "shared ", problem);
  PlanCache& cache = context.plans();
  if (Plan plan = remembered(cache, key, graph)) return plan;
  Choice choice = choose(graph, CUDNN_HEUR_MODE_A, options, context);
  if (choice.plan == nullptr) {
    choice = choose(graph, CUDNN_HEUR_MODE_FALLBACK, options, context);
  }
  cudnn.check(cudnn.set_stream(cudnn.handle, nullptr), "resetting the stream after measuring");
  if (choice.plan == nullptr) {
    cudnn.refusals.push_back(fmt::format("{}: no engine can compute it", problem));
    return nullptr;
  }
  const std::string own = choice.plan->engine().str();
  if (choice.measured && cache.keep(key, own) != own) {
    if (Plan plan = remembered(cache, key, graph)) return plan;  // another process was first
  }
  return choice.plan;
}

}  // namespace

std::string CudnnEngine::str() const {
  std::string text = std::to_string(index);
  for (const auto& [type, value] : knobs) text += fmt::format(" {}={}", type, value);
  return text;
}

std::optional<CudnnEngine> CudnnEngine::parse(const std::string& text) {
  std::istringstream stream(text);
  CudnnEngine engine;
  if (!(stream >> engine.index)) return {};
  std::int64_t type = 0;
  while (stream >> type) {
    char equals = 0;
    std::int64_t value = 0;
    if (!(stream >> equals >> value) || equals != '=') return {};
    engine.knobs.emplace_back(type, value);
  }
  return stream.eof() ? std::optional(engine) : std::nullopt;
}

CudnnPlan::CudnnPlan(std::shared_ptr<const CudnnGraph> graph, CudnnDescriptor configuration)
    : graph_(std::move(graph)),
      configuration_(std::move(configuration)),
      plan_(graph_->cudnn(), CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {}

bool CudnnPlan::finish() {
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, graph_->cudnn().handle);
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration_);
  if (plan_.finish() != CUDNN_STATUS_SUCCESS) return false;
  workspace_bytes_ = static_cast<std::size_t>(
      value_of<std::int64_t>(plan_, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 0));
  engine_ = read_engine(configuration_);
  return true;
}

std::shared_ptr<const CudnnPlan> CudnnPlan::make(std::shared_ptr<const CudnnGraph> graph,
                                                 CudnnDescriptor configuration) {
  const std::shared_ptr<CudnnPlan> plan(new CudnnPlan(std::move(graph), std::move(configuration)));
  return plan->finish() ? plan : nullptr;
}

std::shared_ptr<const CudnnPlan> CudnnPlan::make(std::shared_ptr<const CudnnGraph> graph,
                                                 const CudnnEngine& engine) {
  const Cudnn& cudnn = graph->cudnn();
  CudnnDescriptor described(cudnn, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  described.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph->descriptor());
  described.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, engine.index);
  if (described.finish() != CUDNN_STATUS_SUCCESS) return nullptr;
  std::vector<CudnnDescriptor> choices;
  for (const auto& [type, value] : engine.knobs) {
    CudnnDescriptor& choice = choices.emplace_back(cudnn, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type));
    choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    if (choice.finish() != CUDNN_STATUS_SUCCESS) return nullptr;
  }
  CudnnDescriptor configuration(cudnn, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, described);
  if (!choices.empty()) configuration.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  if (configuration.finish() != CUDNN_STATUS_SUCCESS) return nullptr;
  return make(std::move(graph), std::move(configuration));
}

CudnnDescriptor CudnnPlan::bind(const Places& places, void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [id, pointer] : places) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  CudnnDescriptor pack(graph_->cudnn(), CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace);
  graph_->cudnn().check(pack.finish(), "binding memory");
  return pack;
}

cudnnStatus_t CudnnPlan::run(const CudnnDescriptor& bound, cudaStream_t stream) const {
  const Cudnn& cudnn = graph_->cudnn();
  const cudnnStatus_t status = cudnn.set_stream(cudnn.handle, stream);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  return cudnn.execute(cudnn.handle, plan_.get(), bound.get());
}

std::shared_ptr<const CudnnPlan> cudnn_plan(CudaContext& context, const std::string& problem,
                                            const std::function<void(CudnnGraph&)>& describe,
                                            const CudnnPlanOptions& options) {
  Cudnn& cudnn = context.cudnn();
  const std::lock_guard lock(cudnn.mutex);
  const std::string name = problem + (options.exact ? " exact" : "");
  const auto known = cudnn.plans.find(name);
  if (known != cudnn.plans.end()) return known->second;
  Plan plan = find_plan(context, cudnn, name, describe, options);
  cudnn.plans.emplace(name, plan);
  return plan;
}

std::optional<float> measure_plan(const CudnnPlan& plan) {
  Trial trial(plan.graph(), plan.workspace_bytes(), 1);
  if (!trial.has_memory()) return {};
  return trial.time(plan, std::numeric_limits<float>::infinity());
}

}  // namespace lockstep
