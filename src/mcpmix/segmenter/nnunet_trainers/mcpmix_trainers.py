"""What nnU-Net finds where the environment variable nnUNet_extTrainer names this folder."""

from mcpmix.segmenter.nnunet import nnUNetTrainerMCPMix, nnUNetTrainerMCPMixRLA

__all__ = ["nnUNetTrainerMCPMix", "nnUNetTrainerMCPMixRLA"]
