// A source whose elements stand for files. It gives the elements of the source; for a worker with
// the policy File, those of its files.
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class FileListNode final : public DatasetNode {
 public:
  FileListNode(NodePtr source, FileAccess access) : source_(std::move(source)), access_(access) {}

  // It takes the place of the source.
  std::string name() const override { return source_->name(); }
  std::vector<NodePtr> inputs() const override { return source_->inputs(); }
  std::vector<ElementSpec> element_spec() const override { return source_->element_spec(); }
  std::int64_t cardinality() const override { return source_->cardinality(); }
  std::string signature() const override { return source_->signature(); }
  ShareRules share_rules() const override {
    return {.files = source_->cardinality(), .skips_for_free = access_ == FileAccess::Samples};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    if (context.files.count == 1) return source_->cursor(context);
    return make_shard(source_, context.files.count, context.files.index)->cursor(context);
  }

 private:
  NodePtr source_;
  FileAccess access_;
};

}  // namespace

NodePtr make_file_list(NodePtr source, FileAccess access) {
  return std::make_shared<FileListNode>(std::move(source), access);
}

}  // namespace lockstep
