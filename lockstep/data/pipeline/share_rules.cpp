#include "lockstep/data/pipeline/share_rules.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/piece_selector.h"

namespace lockstep {
namespace {

using Dealt = ShareRules::Dealt;

// The worker's rows of each element, as views.
class SliceCursor final : public Cursor {
 public:
  SliceCursor(std::unique_ptr<Cursor> whole, const WorkerShare& share)
      : whole_(std::move(whole)), share_(share) {}

  std::optional<Element> next() override {
    std::optional<Element> element = whole_->next();
    if (!element) return std::nullopt;
    const std::int64_t rows = rows_of(*element);
    const BatchPiece piece{.rows_of_batch = rows, .rows = share_.rows_of(rows)};
    for (Tensor& component : *element) {
      component = component.rows(piece.rows.begin, piece.rows.size());
    }
    element->piece = piece;
    return element;
  }
  std::int64_t skip(std::int64_t count) override { return whole_->skip(count); }
  void start() override { whole_->start(); }
  bool all_made() const override { return whole_->all_made(); }
  bool has_state() const override { return whole_->has_state(); }
  void save(PositionWriter& state) const override { whole_->save(state); }
  void restore(PositionReader& state) override { whole_->restore(state); }
  Position position() override { return whole_->position(); }
  std::int64_t state_size() const override { return whole_->state_size(); }

 private:
  static std::int64_t rows_of(const Element& element) {
    require(!element.empty(), "[shard] {}: the element has no components to divide among workers",
            describe(element.sample));
    for (std::size_t i = 0; i < element.size(); ++i) {
      const Shape& shape = element[i].shape();
      require(shape.rank() > 0 && shape[0] == element[0].shape()[0],
              "[shard] {}: component {} is {}, which cannot be divided among workers together with "
              "the rows of {}: all components of a batch need as many rows",
              describe(element.sample), i, shape, element[0].shape());
    }
    return element[0].shape()[0];
  }

  std::unique_ptr<Cursor> whole_;
  WorkerShare share_;
};

std::string name_of(AutoShardPolicy policy) {
  switch (policy) {
    case AutoShardPolicy::Auto:
      return "Auto";
    case AutoShardPolicy::File:
      return "File";
    case AutoShardPolicy::Data:
      return "Data";
    case AutoShardPolicy::Off:
      return "Off";
  }
  return "?";
}

void check(const WorkerShare& share) {
  require(share.workers > 0 && share.worker >= 0 && share.worker < share.workers,
          "[shard] there is no worker {} of {}: workers are numbered from 0", share.worker,
          share.workers);
  require(
      share.first_rank >= 0 && share.first_rank < share.end_rank && share.end_rank <= share.ranks,
      "[shard] worker {} has the ranks {} to {} of {}: it needs at least one", share.worker,
      share.first_rank, share.end_rank - 1, share.ranks);
}

// Calls see(rules, node) for the node and those behind it, as long as it returns true. Data sets
// that a node opens follow the elements that it opens them for.
template <class See>
void walk(const DatasetNode& node, const See& see) {
  const ShareRules rules = node.share_rules();
  if (!see(rules, node)) return;
  for (const NodePtr& input : node.inputs()) {
    walk(*input, see);
    if (rules.opens) break;
  }
}

// What dealing out the files does to the whole pipeline.
struct FileReport {
  Dealt dealt = Dealt::Same;
  std::string cause;            // of Wrong: a sentence for the user
  bool skips_for_free = false;  // one of the sources
};

FileReport report_on_files(const DatasetNode& node, int workers) {
  FileReport report;
  const auto wrong = [&](std::string cause) {
    if (report.dealt != Dealt::Wrong) report.cause = std::move(cause);
    report.dealt = Dealt::Wrong;
    return false;
  };
  walk(node, [&](const ShareRules& rules, const DatasetNode& at) {
    if (rules.dealt == Dealt::Wrong) {
      return wrong(fmt::format("{} needs the elements of all files", at.name()));
    }
    if (rules.dealt == Dealt::Others) report.dealt = std::max(report.dealt, Dealt::Others);
    report.skips_for_free |= rules.skips_for_free;
    if (rules.files > 0) {
      if (rules.files >= workers) return false;
      return wrong(fmt::format("{} reads {} file{} and there are {} workers", at.name(),
                               rules.files, rules.files == 1 ? "" : "s", workers));
    }
    if (at.inputs().empty()) return wrong(fmt::format("{} does not read files", at.name()));
    return true;
  });
  return report;
}

// The sizes of the last batches of each branch; 0 for one without a batch that can be resized.
std::vector<std::int64_t> last_batches(const DatasetNode& node) {
  std::vector<std::int64_t> sizes;
  walk(node, [&](const ShareRules& rules, const DatasetNode& at) {
    const bool found = rules.batch > 0 || !rules.any_batch || at.inputs().empty();
    if (found) sizes.push_back(rules.any_batch ? rules.batch : 0);
    return !found;
  });
  return sizes;
}

bool has_rows_for_every_rank(const DatasetNode& node, const WorkerShare& share) {
  return std::ranges::all_of(last_batches(node),
                             [&](std::int64_t size) { return size >= share.ranks; });
}

// With File and Off each worker makes batches of its own.
void check_batches(const DatasetNode& node, const WorkerShare& share) {
  for (const std::int64_t size : last_batches(node)) {
    require(size > 0,
            "[shard] with the policy {} each worker makes smaller batches, but the batches of {} "
            "are not made by batch(): call batch() last, or use AutoShardPolicy::Data",
            name_of(share.policy), node.name());
    require(own_batch_rows(share, size) > 0,
            "[shard] a batch of {} rows has none for worker {} of {} ({} ranks), so the policy {} "
            "would lose its samples: make batches of at least {} rows, or use "
            "AutoShardPolicy::Data",
            size, share.worker, share.workers, share.ranks, name_of(share.policy), share.ranks);
  }
}

void check_rows(const DatasetNode& node) {
  const std::vector<ElementSpec> spec = node.element_spec();
  for (std::size_t i = 0; i < spec.size(); ++i) {
    require(spec[i].shape.rank() > 0,
            "[shard] component {} of the elements ({}) has no rows to divide among workers: batch "
            "the samples with .batch(32)",
            i, describe(spec));
  }
}

}  // namespace

WorkerShare resolved(const DatasetNode& node, WorkerShare share, AutoShardPolicy chosen) {
  check(share);
  if (share.policy == AutoShardPolicy::Auto) share.policy = chosen;
  if (share.policy == AutoShardPolicy::Auto) {
    const FileReport files = report_on_files(node, share.workers);
    const bool deal =
        files.dealt == Dealt::Same && !files.skips_for_free && has_rows_for_every_rank(node, share);
    share.policy = deal ? AutoShardPolicy::File : AutoShardPolicy::Data;
  }
  if (share.policy == AutoShardPolicy::File) {
    const FileReport files = report_on_files(node, share.workers);
    require(files.dealt != Dealt::Wrong,
            "[shard] the policy File deals out files to {} workers, but {}: use "
            "AutoShardPolicy::Data, or read at least {} files",
            share.workers, files.cause, share.workers);
  }
  if (share.policy == AutoShardPolicy::Data) {
    check_rows(node);
  } else {
    check_batches(node, share);
  }
  return share;
}

std::int64_t own_batch_rows(const WorkerShare& share, std::int64_t n) {
  const auto begin = [&](int rank) {
    return n / share.ranks * rank + (n % share.ranks * rank + share.ranks - 1) / share.ranks;
  };
  return begin(share.end_rank) - begin(share.first_rank);
}

std::unique_ptr<Cursor> cursor_of_share(const DatasetNode& node, const Context& context) {
  if (context.selector != nullptr && context.selector->selects_from(node)) {
    return std::make_unique<SelectCursor>(context.selector);
  }
  if (context.slices() && node.share_rules().rows == ShareRules::Rows::OfWhole) {
    return std::make_unique<SliceCursor>(node.cursor(context.without_share()), *context.share);
  }
  return node.cursor(context);
}

bool may_start_early_throughout(const DatasetNode& node) {
  return node.may_start_early() && std::ranges::all_of(node.inputs(), [](const NodePtr& input) {
           return may_start_early_throughout(*input);
         });
}

}  // namespace lockstep
