// Dataset: describes where samples come from and how they are transformed. It holds no position
// and can be iterated any number of times, by several iterators at once.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/base/random.h"
#include "lockstep/base/shape.h"
#include "lockstep/data/iterator.h"
#include "lockstep/data/pipeline/budget.h"
#include "lockstep/data/tuning.h"
#include "lockstep/data/worker_share.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class Recorder;

// The dtype and shape of one component of an element. Batched components have a leading axis whose
// extent in the spec is the requested batch size (the last batch may be shorter).
struct ElementSpec {
  DType dtype = DType::F32;
  Shape shape = {};
  bool varies = false;  // the extents differ between elements (image files); the rank does not
  bool operator==(const ElementSpec&) const = default;
};

// "u8 (28, 28), i32 ()"
std::string describe(const std::vector<ElementSpec>& spec);
std::ostream& operator<<(std::ostream& stream, const ElementSpec& spec);
std::ostream& operator<<(std::ostream& stream, const std::vector<ElementSpec>& spec);

// Lets the pipeline choose the number of threads or the length of a queue.
inline constexpr int AUTOTUNE = -1;

// What happens when an element cannot be produced: the consumer gets the error, or the element is
// skipped, counted and listed in the report.
enum class OnError { Raise, Skip };

struct ShuffleOptions {
  std::int64_t buffer = 0;  // elements; 0: the whole data set, a uniform shuffle
  std::uint64_t seed = 0;
  bool reshuffle_each_iteration = true;
};
struct BatchOptions {
  bool drop_remainder = false;
};
struct PaddedBatchOptions {
  // The extents of each component in a batch; if empty, those of its largest element.
  std::vector<Shape> shapes = {};
  std::vector<double> values = {};  // padding, one per component; if empty, 0
  bool drop_remainder = false;
};

// Turns an element into another one. It must not write into its arguments' tensors, and it must
// return the same result for the same element, or saved positions are meaningless. With `parallel`,
// several threads call it at once.
using MapFunction = std::function<Element(const Element&)>;
// The same with random numbers, which depend only on the seed, the epoch and the sample.
using RandomMapFunction = std::function<Element(const Element&, RandomSequence&)>;
// The same, writing to existing tensors: the rows of a batch if one is being assembled.
using WriteFunction =
    std::function<void(const Element&, RandomSequence&, std::span<Tensor> destination)>;
using Predicate = std::function<bool(const Element&)>;

struct MapOptions {
  // What the function returns. If empty, the function is called once with zeros to find out.
  std::vector<ElementSpec> spec = {};
  int parallel = 1;           // calls at once, or AUTOTUNE
  bool deterministic = true;  // false: elements come as soon as they are ready, in any order
  OnError on_error = OnError::Raise;
  std::uint64_t seed = 0;  // for the random numbers
  std::string name = {};   // for reports and errors: "decode"
  // For functions of batches: row i of the result depends only on row i. A worker then maps its own
  // rows instead of the whole global batch. Not for functions with random numbers.
  bool rowwise = false;
};
struct FilterOptions {
  OnError on_error = OnError::Raise;
  std::string name = {};
};
struct InterleaveOptions {
  int cycle = 4;           // inputs that take turns
  std::int64_t block = 1;  // elements taken from one input before the next
  int parallel = 1;        // inputs read at once, or AUTOTUNE
  bool deterministic = true;
};

class Dataset;
class DatasetNode;

// Opens the data set for an element, for interleave.
using DatasetFunction = std::function<Dataset(const Element&)>;
// Called at the beginning of every pass. The function it returns is called for each element and
// returns nullopt at the end.
using Generator = std::function<std::function<std::optional<Element>()>(std::uint64_t epoch)>;

// The same, starting at element `from` of the pass, for generators that can start anywhere.
using SeekingGenerator =
    std::function<std::function<std::optional<Element>()>(std::uint64_t epoch, std::int64_t from)>;

// A pass that can save its position, as a string of arbitrary bytes.
struct SavingPass {
  std::function<std::optional<Element>()> next;
  std::function<std::string()> save;
};
// Begins a pass, or resumes one from the state that save() returned.
using ResumingGenerator =
    std::function<SavingPass(std::uint64_t epoch, const std::optional<std::string>& state)>;

// The only position that a plain generator has is the number of elements so far. Restoring it calls
// it again for every earlier element, which takes as long as the first time. To avoid that:
//   .seek    for a generator that can start at any element;
//   .resume  for one that keeps other state, such as that of its random numbers or an offset in a
//            file.
struct GeneratorOptions {
  std::vector<ElementSpec> spec = {};
  SeekingGenerator seek = {};
  ResumingGenerator resume = {};
  std::string name = {};
  OnError on_error = OnError::Raise;
  std::optional<std::int64_t> cardinality = {};
};

struct IteratorOptions {
  std::uint64_t epoch = 0;
  // The shard that Dataset::shard() without arguments selects.
  std::int64_t shard = 0;
  std::int64_t shards = 1;
  // The part of one of several workers that train together; nullopt: everything.
  std::optional<WorkerShare> share = {};
  Device* memory = nullptr;      // where batches are assembled: host memory (null) or pinned
  Recorder* recorder = nullptr;  // records the spans of the pipeline's threads
};

struct ExplainOptions {
  double seconds = 3;                         // at most
  std::optional<std::int64_t> elements = {};  // at most
  IteratorOptions iterator = {};
};

// A function of the two tensors {x, y} of an element rather than of the element.
template <class Result, class F>
concept FunctionOfTwo = !std::is_invocable_v<F&, const Element&> &&
                        !std::is_invocable_v<F&, const Element&, RandomSequence&> &&
                        std::is_invocable_r_v<Result, F&, const Tensor&, const Tensor&>;

// The iterator of a range-for over a data set: one pass.
class ElementIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using difference_type = std::ptrdiff_t;
  using value_type = Element;

  explicit ElementIterator(std::unique_ptr<Iterator> iterator);
  Element& operator*() const { return *element_; }
  Element* operator->() const { return element_.get(); }
  ElementIterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return element_ == nullptr; }
  // The position of the pass, for Iterator::save and restore.
  Iterator& position() const { return *iterator_; }

 private:
  std::shared_ptr<Iterator> iterator_;
  std::shared_ptr<Element> element_;  // null at the end
};

class Dataset {
 public:
  explicit Dataset(std::shared_ptr<const DatasetNode> node, Budget budget = {})
      : node_(std::move(node)), budget_(budget) {}

  // Slices along axis 0, whose extent is the same for all tensors: element i is {t0[i], t1[i], …}.
  static Dataset from_tensor_slices(std::vector<Tensor> tensors);
  template <std::same_as<Tensor> T>
  static Dataset from_tensor_slices(T tensor) {
    return from_tensor_slices(std::vector<Tensor>{std::move(tensor)});
  }
  // A single element, {t0, t1, …}.
  static Dataset from_tensors(std::vector<Tensor> tensors);
  template <std::same_as<Tensor> T>
  static Dataset from_tensors(T tensor) {
    return from_tensors(std::vector<Tensor>{std::move(tensor)});
  }
  // Elements from a user's function; the generator may be null if .seek or .resume replaces it.
  static Dataset from_generator(Generator generator, GeneratorOptions options);
  // 0, 1, …, count - 1, as i64 scalars.
  static Dataset range(std::int64_t count);

  Dataset shuffle(ShuffleOptions options) const;
  // shuffle(1000), shuffle(1000, {.seed = 7}).
  Dataset shuffle(std::int64_t buffer, ShuffleOptions options = {}) const;
  Dataset batch(std::int64_t size, BatchOptions options = {}) const;
  // Batches of elements with different extents, padded at the end of each axis.
  Dataset padded_batch(std::int64_t size, PaddedBatchOptions options = {}) const;
  // The rows of batches, one by one.
  Dataset unbatch() const;
  Dataset take(std::int64_t count) const;         // -1: all
  Dataset skip(std::int64_t count) const;         // -1: all
  Dataset repeat(std::int64_t count = -1) const;  // -1: forever
  Dataset map(MapFunction function, MapOptions options = {}) const;
  Dataset map(RandomMapFunction function, MapOptions options = {}) const;
  // For elements of two tensors: map([](const Tensor& x, const Tensor& y) -> Element {…}).
  template <class F>
  requires FunctionOfTwo<Element, F> Dataset map(F function, MapOptions options = {})
  const {
    return map(MapFunction([f = std::move(function)](const Element& element) -> Element {
                 return f(get<0>(element), get<1>(element));
               }),
               std::move(options));
  }
  // options.spec is required: it describes what the function writes.
  Dataset map_into(WriteFunction function, MapOptions options) const;
  Dataset filter(Predicate predicate, FilterOptions options = {}) const;
  template <class F>
  requires FunctionOfTwo<bool, F> Dataset filter(F predicate, FilterOptions options = {})
  const {
    return filter(Predicate([f = std::move(predicate)](const Element& element) -> bool {
                    return f(get<0>(element), get<1>(element));
                  }),
                  std::move(options));
  }
  // Every count-th element, starting with number `index`.
  Dataset shard(std::int64_t count, std::int64_t index) const;
  // The shard that IteratorOptions asks for: `shard` of `shards`.
  Dataset shard() const;
  // Calls the function for each element and takes the elements of the data sets it returns in turn.
  Dataset interleave(DatasetFunction function, InterleaveOptions options = {}) const;
  // Pairs of elements, {a…, b…}, as many as the shorter data set has.
  Dataset zip(const Dataset& other) const;
  Dataset concatenate(const Dataset& other) const;
  // Puts the number of each element, counted from `start`, in front of it as an i64 scalar.
  Dataset enumerate(std::int64_t start = 0) const;
  // Keeps the elements of the first pass: in memory, or in a file that later runs use again.
  Dataset cache() const;
  Dataset cache(const std::filesystem::path& file) const;
  // Writes the elements to a folder once and reads them from there afterwards. Unlike a cache, any
  // other program can read them with Dataset::load.
  Dataset snapshot(const std::filesystem::path& folder) const;
  static Dataset load(const std::filesystem::path& folder);
  // Produces elements before they are requested. A position saved with prefetch can be restored
  // without it, and vice versa.
  Dataset prefetch(int buffer = AUTOTUNE) const;

  // The cores and memory that each iterator of this data set may use.
  Dataset with_budget(Budget budget) const;
  // What AUTOTUNE has learned so far (tuning.h); every pass over this data set and its copies
  // starts from it. To start from what an earlier run learned, load() its file and pass it to
  // with_tuning.
  const std::shared_ptr<PipelineTuning>& tuning() const { return tuning_; }
  Dataset with_tuning(std::shared_ptr<PipelineTuning> tuning) const;

  // These options for this data set and all that are derived from it; zip and concatenate take
  // those of the data set that they are called on.
  Dataset with_options(DatasetOptions options) const;
  const DatasetOptions& options() const { return options_; }
  // File, Data or Off: how workers with such shares divide this data set (worker_share.h). The
  // same for all of them. UsageError if the policy that was chosen cannot be followed.
  AutoShardPolicy resolve_policy(const WorkerShare& share) const;
  // The same for `workers` workers with one rank each.
  AutoShardPolicy resolve_policy(int workers) const;

  std::vector<ElementSpec> element_spec() const;
  // How many elements an epoch has; nullopt if unknown or infinite.
  std::optional<std::int64_t> cardinality() const;
  // A new iterator at the beginning of an epoch; shuffles differ from epoch to epoch.
  std::unique_ptr<Iterator> iterator(std::uint64_t epoch = 0) const;
  std::unique_ptr<Iterator> iterator(const IteratorOptions& options) const;
  // A loop over the elements. Each loop is the next epoch; copies of the data set share the count:
  //   for (auto& [images, labels] : batches) …
  //   for (const ls::Element& element : samples) … element[0]
  ElementIterator begin() const { return ElementIterator(iterator(passes_->fetch_add(1))); }
  std::default_sentinel_t end() const { return {}; }
  // Runs the pipeline for a while at full speed and reports where the time went.
  PipelineReport explain(ExplainOptions options = {}) const;

  // For lockstep/data only.
  const std::shared_ptr<const DatasetNode>& node() const { return node_; }

 private:
  Dataset then(std::shared_ptr<const DatasetNode> node) const {
    Dataset next(std::move(node), budget_);
    next.options_ = options_;
    return next;
  }

  std::shared_ptr<const DatasetNode> node_;
  Budget budget_;
  DatasetOptions options_;
  std::shared_ptr<PipelineTuning> tuning_ = std::make_shared<PipelineTuning>();
  std::shared_ptr<std::atomic<std::uint64_t>> passes_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

// "Dataset(938 elements: f32 (64, 28, 28, 1), i32 (64,))"
std::ostream& operator<<(std::ostream& stream, const Dataset& dataset);

}  // namespace lockstep
