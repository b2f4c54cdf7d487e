// Keeps the elements of the first pass in memory, for all iterators of the data set. Elements that
// are rows of a table are in memory already and are not copied.
//
// Every iterator that fills or reads the cache reserves its memory from its budget once.
#include <algorithm>
#include <map>
#include <mutex>

#include "lockstep/data/transformations.h"
#include "lockstep/data/transformations/cache_cursor.h"
#include "lockstep/data/transformations/shard.h"

namespace lockstep {
namespace {

// Memory reserved from an iterator's budget during the lifetime of this object.
class Reservation {
 public:
  explicit Reservation(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
  ~Reservation() { runtime_->release(bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  void add(std::size_t bytes) {
    require(
        runtime_->reserve(bytes),
        "[cache] after {} bytes of elements, {} more do not fit into the budget of {} bytes, {} of "
        "which are in use: raise it with with_budget(), or keep the elements in a file with "
        "cache(file)",
        bytes_, bytes, runtime_->memory_budget(), runtime_->reserved());
    bytes_ += bytes;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Runtime> runtime_;
  std::size_t bytes_ = 0;
};

// The elements of a complete pass, and the right to fill the cache.
class Kept {
 public:
  std::shared_ptr<const std::vector<Element>> elements() const {
    std::lock_guard lock(mutex_);
    return elements_;
  }
  // Only one cursor fills the cache at a time.
  bool claim() {
    std::lock_guard lock(mutex_);
    if (claimed_ || elements_ != nullptr) return false;
    claimed_ = true;
    return true;
  }
  void give_up() {
    std::lock_guard lock(mutex_);
    claimed_ = false;
  }
  // Publishes the elements, with the memory that the filling iterator reserved for them.
  void publish(std::vector<Element> elements, const std::shared_ptr<Runtime>& runtime,
               const std::shared_ptr<Reservation>& paid) {
    std::lock_guard lock(mutex_);
    elements_ = std::make_shared<const std::vector<Element>>(std::move(elements));
    bytes_ = paid->bytes();
    reservations_[runtime.get()] = paid;
  }
  // Shared by all cursors of one iterator.
  std::shared_ptr<Reservation> reservation(const std::shared_ptr<Runtime>& runtime) {
    std::lock_guard lock(mutex_);
    std::erase_if(reservations_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Reservation>& known = reservations_[runtime.get()];
    if (std::shared_ptr<Reservation> reservation = known.lock()) return reservation;
    auto reservation = std::make_shared<Reservation>(runtime);
    reservation->add(bytes_);
    known = reservation;
    return reservation;
  }

 private:
  mutable std::mutex mutex_;
  bool claimed_ = false;
  std::size_t bytes_ = 0;
  std::shared_ptr<const std::vector<Element>> elements_;
  std::map<const Runtime*, std::weak_ptr<Reservation>> reservations_;
};

class MemoryStore final : public CacheStore {
 public:
  MemoryStore(std::shared_ptr<Kept> kept, std::shared_ptr<Runtime> runtime)
      : kept_(std::move(kept)), runtime_(std::move(runtime)) {}
  ~MemoryStore() override { give_up(); }

  bool open() override {
    opened_ = kept_->elements();
    if (opened_ == nullptr) return false;
    reservation_ = kept_->reservation(runtime_);
    return true;
  }
  std::int64_t count() const override { return std::ssize(*opened_); }
  Element read(std::int64_t number) override {
    return (*opened_)[static_cast<std::size_t>(number)];
  }

  bool begin() override {
    keeping_ = kept_->claim();
    if (keeping_) reservation_ = std::make_shared<Reservation>(runtime_);
    return keeping_;
  }
  void keep(const Element& element) override {
    try {
      reservation_->add(bytes_of(element));
    } catch (...) {
      give_up();
      throw;
    }
    // A copy, because the tensors may be small views of large or pinned buffers.
    Element copy;
    copy.sample = element.sample;
    for (const Tensor& component : element) {
      copy.emplace_back(component.dtype(), component.shape());
      copy.back().copy_from(component);
    }
    elements_.push_back(std::move(copy));
  }
  void finish() override {
    kept_->publish(std::move(elements_), runtime_, reservation_);
    keeping_ = false;
  }

 private:
  void give_up() {
    if (!keeping_) return;
    elements_.clear();
    reservation_ = nullptr;
    kept_->give_up();
    keeping_ = false;
  }

  std::shared_ptr<Kept> kept_;
  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Reservation> reservation_;
  std::shared_ptr<const std::vector<Element>> opened_;
  bool keeping_ = false;
  std::vector<Element> elements_;
};

// For rows of a table: returns the same elements as a cache, without copying them.
class RowsCursor final : public Cursor {
 public:
  RowsCursor(Input input, std::uint64_t epoch) : epoch_(epoch), input_(std::move(input)) {}

  std::optional<Element> next() override {
    std::optional<Element> element = input_.next();
    if (element) element->sample.epoch = epoch_in_pass(epoch_, element->sample.epoch);
    return element;
  }
  std::int64_t skip(std::int64_t count) override { return input_.skip(count); }
  const Table* table() const override { return input_.table(); }
  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    const std::int64_t got = input_.next_rows(rows);
    for (std::int64_t& row : rows.first(static_cast<std::size_t>(got))) {
      row = in_pass(row, input_.table()->rows());
    }
    return got;
  }
  void save(PositionWriter& state) const override { input_.save(state); }
  void restore(PositionReader& state) override { input_.restore(state); }
  std::int64_t state_size() const override { return input_.state_size(); }

 private:
  // The row number in this pass.
  std::int64_t in_pass(std::int64_t row, std::int64_t count) const {
    if (row < count) return static_cast<std::int64_t>(epoch_) * count + row;
    const auto round = static_cast<std::uint64_t>(row / count);
    std::int64_t first = 0;
    require(!__builtin_mul_overflow(epoch_in_pass(epoch_, round), count, &first),
            "[cache] {} rows repeated {} times overflow the row numbers: call repeat() after "
            "cache()",
            count, round);
    return first + row % count;
  }

  std::uint64_t epoch_;
  Input input_;
};

class MemoryCacheNode final : public DatasetNode {
 public:
  explicit MemoryCacheNode(NodePtr input)
      : input_(std::move(input)), per_shard_(depends_on_shard(*input_)) {}

  std::string name() const override { return "cache"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override { return input_->cardinality(); }
  std::string signature() const override { return input_->signature() + ".cache"; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    Input input(input_, context.in_epoch(0));
    if (input.table() != nullptr) {
      return std::make_unique<RowsCursor>(std::move(input), context.epoch);
    }
    return std::make_unique<CacheCursor>(
        std::move(input), context.epoch,
        std::make_unique<MemoryStore>(kept_of(context), context.runtime));
  }

 private:
  std::shared_ptr<Kept> kept_of(const Context& context) const {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Kept>& kept = kept_[cached_part(context, per_shard_)];
    if (kept == nullptr) kept = std::make_shared<Kept>();
    return kept;
  }

  NodePtr input_;
  bool per_shard_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<Kept>> kept_;  // by part
};

}  // namespace

NodePtr make_memory_cache(NodePtr input) {
  require(input->cardinality() != kInfinite,
          "[cache] an infinite data set cannot be cached; call cache() before repeat()");
  return std::make_shared<MemoryCacheNode>(std::move(input));
}

}  // namespace lockstep
