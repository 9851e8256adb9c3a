#include "sluice/model/saved.h"

#include <ATen/ops/cat.h>

#include "sluice/common/errors.h"

namespace sluice {

void join_first_slices(KeyValueContext& context) {
  for (LayerKeyValues& layer : context.layers) {
    for (std::vector<at::Tensor>* list : {&layer.k, &layer.v}) {
      SLUICE_CHECK(list->size() >= 2 && (*list)[0].defined() && (*list)[1].defined());
      (*list)[0] = at::cat({(*list)[0], (*list)[1]}, 2);
      (*list)[1].reset();
    }
  }
}

}  // namespace sluice
