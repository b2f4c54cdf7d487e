// Dataset: describes where samples come from and what is done to them. It holds no position and
// can be iterated any number of times, by several iterators at once.
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
#include "lockstep/data/budget.h"
#include "lockstep/data/iterator.h"
#include "lockstep/data/tuning.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class Recorder;

// The dtype and shape of one component of an element. Batched components have a leading axis whose
// extent, in the spec, is the batch size asked for (the last batch may be shorter).
struct ElementSpec {
  DType dtype = DType::F32;
  Shape shape = {};
  bool varies = false;  // from element to element, all but the rank: the extents of an image file
  bool operator==(const ElementSpec&) const = default;
};

// "u8 (28, 28), i32 ()"
std::string describe(const std::vector<ElementSpec>& spec);
std::ostream& operator<<(std::ostream& stream, const ElementSpec& spec);
std::ostream& operator<<(std::ostream& stream, const std::vector<ElementSpec>& spec);

// "As many as it takes": for prefetch and parallelism.
inline constexpr int AUTOTUNE = -1;

// What happens to an element that cannot be made: the error reaches the consumer, or the element is
// passed over, counted and listed in the report.
enum class OnError { Raise, Skip };

struct ShuffleOptions {
  std::int64_t buffer = 0;  // as many as the data set has: a uniform shuffle
  std::uint64_t seed = 0;
  bool reshuffle_each_iteration = true;
};
struct BatchOptions {
  bool drop_remainder = false;
};
struct PaddedBatchOptions {
  // The extents of each component in a batch; where nothing is said, those of its largest element.
  std::vector<Shape> shapes = {};
  std::vector<double> values = {};  // to pad with, one for each component (0)
  bool drop_remainder = false;
};

// Makes an element of an element. It must not write into the tensors that it is given, and must
// give the same result for the same element, or saved positions mean nothing. With `parallel`, it
// is called by several threads at once.
using MapFunction = std::function<Element(const Element&)>;
// The same with random numbers, which depend on the seed, the epoch and the sample alone.
using RandomMapFunction = std::function<Element(const Element&, RandomSequence&)>;
// The same, writing to tensors that are already there, the rows of a batch where one is assembled.
using WriteFunction =
    std::function<void(const Element&, RandomSequence&, std::span<Tensor> destination)>;
using Predicate = std::function<bool(const Element&)>;

struct MapOptions {
  // What the function returns. Where nothing is said, it is called once with zeros to find out.
  std::vector<ElementSpec> spec = {};
  int parallel = 1;           // calls at once, or AUTOTUNE
  bool deterministic = true;  // false: elements come as they are ready, not in the input's order
  OnError on_error = OnError::Raise;
  std::uint64_t seed = 0;  // of the random numbers
  std::string name = {};   // for reports and errors: "decode"
};
struct FilterOptions {
  OnError on_error = OnError::Raise;
  std::string name = {};
};
struct InterleaveOptions {
  int cycle = 4;           // inputs that take turns
  std::int64_t block = 1;  // elements of one before the next has its turn
  int parallel = 1;        // inputs read at once, or AUTOTUNE
  bool deterministic = true;
};

class Dataset;
class DatasetNode;

// The data set of an element: what interleave opens.
using DatasetFunction = std::function<Dataset(const Element&)>;
// Called at the beginning of every pass; what it returns gives the elements until it has no more.
using Generator = std::function<std::function<std::optional<Element>()>(std::uint64_t epoch)>;

// The same from an element of the pass on, for generators that can begin anywhere.
using SeekingGenerator =
    std::function<std::function<std::optional<Element>()>(std::uint64_t epoch, std::int64_t from)>;

// A pass that can write down where it is: in a text of its own, of any bytes.
struct SavingPass {
  std::function<std::optional<Element>()> next;
  std::function<std::string()> save;
};
// Begins a pass; or, with what save() of an earlier one returned, goes on from there.
using ResumingGenerator =
    std::function<SavingPass(std::uint64_t epoch, const std::optional<std::string>& state)>;

// A plain generator has no position but the number of its elements: a restored one is called again
// for all that came before, in time of the data, not of the state. With one of these it is not:
//   .seek    for a generator that can begin at any number;
//   .resume  for one that knows where it is by something else, such as the state of its random
//            numbers, or an offset in a file.
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
  // The share that Dataset::shard() without arguments keeps.
  std::int64_t shard = 0;
  std::int64_t shards = 1;
  Device* memory = nullptr;      // where batches are assembled: the host's (null), or pinned
  Recorder* recorder = nullptr;  // where the threads' spans go
};

struct ExplainOptions {
  double seconds = 3;                         // at most, at the pipeline's own speed
  std::optional<std::int64_t> elements = {};  // at most
  IteratorOptions iterator = {};
};

// A function of the tensors of an element that has two, {x, y}; not one of elements.
template <class Result, class F>
concept FunctionOfTwo = !std::is_invocable_v<F&, const Element&> &&
                        !std::is_invocable_v<F&, const Element&, RandomSequence&> &&
                        std::is_invocable_r_v<Result, F&, const Tensor&, const Tensor&>;

// What a range-for over a data set goes through; it ends where the pass does.
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
  // Where the pass is, to go on from later: Iterator::save and restore.
  Iterator& position() const { return *iterator_; }

 private:
  std::shared_ptr<Iterator> iterator_;
  std::shared_ptr<Element> element_;  // null at the end
};

class Dataset {
 public:
  explicit Dataset(std::shared_ptr<const DatasetNode> node, Budget budget = {})
      : node_(std::move(node)), budget_(budget) {}

  // Slices of tensors along axis 0, which all share: element i is {t0[i], t1[i], …}.
  static Dataset from_tensor_slices(std::vector<Tensor> tensors);
  template <std::same_as<Tensor> T>
  static Dataset from_tensor_slices(T tensor) {
    return from_tensor_slices(std::vector<Tensor>{std::move(tensor)});
  }
  // One element, which is the tensors as they are.
  static Dataset from_tensors(std::vector<Tensor> tensors);
  template <std::same_as<Tensor> T>
  static Dataset from_tensors(T tensor) {
    return from_tensors(std::vector<Tensor>{std::move(tensor)});
  }
  // Elements of the user's own making; the generator may be null where an option replaces it.
  static Dataset from_generator(Generator generator, GeneratorOptions options);
  // 0, 1, …, count - 1, as i64 scalars.
  static Dataset range(std::int64_t count);

  Dataset shuffle(ShuffleOptions options) const;
  // shuffle(1000), shuffle(1000, {.seed = 7}).
  Dataset shuffle(std::int64_t buffer, ShuffleOptions options = {}) const;
  Dataset batch(std::int64_t size, BatchOptions options = {}) const;
  // Batches of elements of different extents, filled up at the ends.
  Dataset padded_batch(std::int64_t size, PaddedBatchOptions options = {}) const;
  // The rows of batches, one by one.
  Dataset unbatch() const;
  Dataset take(std::int64_t count) const;         // -1: all
  Dataset skip(std::int64_t count) const;         // -1: all
  Dataset repeat(std::int64_t count = -1) const;  // -1: for ever
  Dataset map(MapFunction function, MapOptions options = {}) const;
  Dataset map(RandomMapFunction function, MapOptions options = {}) const;
  // Of the two tensors of an element: map([](const Tensor& x, const Tensor& y) -> Element {…}).
  template <class F>
  requires FunctionOfTwo<Element, F> Dataset map(F function, MapOptions options = {})
  const {
    return map(MapFunction([f = std::move(function)](const Element& element) -> Element {
                 return f(get<0>(element), get<1>(element));
               }),
               std::move(options));
  }
  // options.spec says what is written; it must be given.
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
  // Every count-th element, from number `index` on.
  Dataset shard(std::int64_t count, std::int64_t index) const;
  // The share of the worker that iterates: IteratorOptions::shard of shards.
  Dataset shard() const;
  // The elements of the data sets that a function makes of the elements, in turns.
  Dataset interleave(DatasetFunction function, InterleaveOptions options = {}) const;
  // Elements side by side, {a…, b…}, as many as the shorter has.
  Dataset zip(const Dataset& other) const;
  Dataset concatenate(const Dataset& other) const;
  // An i64 scalar in front of each element: its number, from `start` on.
  Dataset enumerate(std::int64_t start = 0) const;
  // Keeps the elements of the first pass: in memory, or in a file that later runs find again.
  Dataset cache() const;
  Dataset cache(const std::filesystem::path& file) const;
  // The elements as they are now, written to a folder once and read from there ever after. Unlike a
  // cache, another data set finds them too (Dataset::load).
  Dataset snapshot(const std::filesystem::path& folder) const;
  static Dataset load(const std::filesystem::path& folder);
  // Makes elements ahead of their use. A position saved with prefetch can be restored without, and
  // the other way round.
  Dataset prefetch(int buffer = AUTOTUNE) const;

  // What iterators of this data set may use of the machine.
  Dataset with_budget(Budget budget) const;
  // What AUTOTUNE learned so far (tuning.h): every pass over this data set and its copies begins
  // with it. To begin with what an earlier run learned, load() a file and hand it on.
  const std::shared_ptr<PipelineTuning>& tuning() const { return tuning_; }
  Dataset with_tuning(std::shared_ptr<PipelineTuning> tuning) const;

  std::vector<ElementSpec> element_spec() const;
  // How many elements an epoch has; nothing where that is not known, or for ever.
  std::optional<std::int64_t> cardinality() const;
  // A new iterator at the beginning of an epoch; what is shuffled differs from epoch to epoch.
  std::unique_ptr<Iterator> iterator(std::uint64_t epoch = 0) const;
  std::unique_ptr<Iterator> iterator(const IteratorOptions& options) const;
  // A loop over the elements. Each begins the next epoch, which copies of the data set count
  // together:
  //   for (auto& [images, labels] : batches) …
  //   for (const ls::Element& element : samples) … element[0]
  ElementIterator begin() const { return ElementIterator(iterator(passes_->fetch_add(1))); }
  std::default_sentinel_t end() const { return {}; }
  // Runs the pipeline for a while as fast as it goes, and says where the time went.
  PipelineReport explain(ExplainOptions options = {}) const;

  // For the room's own files.
  const std::shared_ptr<const DatasetNode>& node() const { return node_; }

 private:
  Dataset then(std::shared_ptr<const DatasetNode> node) const {
    return Dataset(std::move(node), budget_);
  }

  std::shared_ptr<const DatasetNode> node_;
  Budget budget_;
  std::shared_ptr<PipelineTuning> tuning_ = std::make_shared<PipelineTuning>();
  std::shared_ptr<std::atomic<std::uint64_t>> passes_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

// "Dataset(938 elements: f32 (64, 28, 28, 1), i32 (64,))"
std::ostream& operator<<(std::ostream& stream, const Dataset& dataset);

}  // namespace lockstep
