"""The call signatures of the paper's published code, so that its training scripts run by changing an import.

    from ISDA import EstimatorCV, ISDALoss            ->  from isda.compat.cifar import EstimatorCV, ISDALoss
    from ISDA_imagenet import EstimatorCV, ISDALoss   ->  from isda.compat.imagenet import EstimatorCV, ISDALoss
    the Cityscapes code                               ->  from isda.compat.segmentation import EstimatorCV, ISDALoss

New code is better off with isda.ISDALoss, which needs no model in its call (docs/migrating.md).
"""
